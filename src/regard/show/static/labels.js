// The page's words for heads, sides and statistics, each with a tip; those of layers come with the data.

export const headTitle = (head) => `head ${head}`;
export const headOf = (layer, head) => `${layer.title}, ${headTitle(head)}`;

export const sideTitles = {source: "source", decoder_input: "decoder input", target: "target"};
export const sideTips = {
  source: "the text that the encoder reads", decoder_input: "the tokens that the decoder reads: the target, one step late", target: "the tokens that the decoder predicts",
};

export const statistics = {
  entropy: "bits of entropy: low = focused on few keys, high = spread over many (the mean over queries)",
  distance: "attention distance, in tokens between query and key: low = nearby tokens (the mean over queries)",
  confidence: "confidence, the largest weight of a query: high = focused on one key (the mean over queries; Voita 2019)",
};

export const summaryTips = {
  head: "the weights of the selected head", mean: "the mean over the heads of this layer", maximum: "the largest weight of any head of this layer",
  rollout: "attention rollout: the weights of all layers up to this one multiplied, half attention and half residual connection (Abnar 2020)",
  norm: "the weights times the norms of the transformed values (Kobayashi 2020)",
};

// What a token of the generation view is, by its origin.
export function originTitle(origin, shape) {
  if (origin === "given") return {decoder: "in the prompt", encoder: "in the text"}[shape] ?? "given";
  return origin === "chosen" ? "chosen" : "most probable";
}
