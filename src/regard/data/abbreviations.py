"""Abbreviations per language, without their last dot and in small letters, which the sentence splitter knows."""

from __future__ import annotations

ABBREVIATIONS: dict[str, str] = {
    "en": "mr mrs ms messrs dr prof rev hon st gen col lt capt cmdr sgt maj gov sen rep pres fr vs cf e.g i.e viz "
          "approx est esp ca mt ft dept univ assn bros ave blvd rd mme mlle m.r ph.d resp incl al",
    "de": "dr prof hr hrn fr frl z.b z.t u.a d.h i.d.r o.ä s.o s.u v.a m.e bzw ca evtl ggf inkl exkl zzgl abzgl sog "
          "vgl bspw z b d h u a s o i r t str st nr gem lt tel geb gest verh ing dipl mag min max mind ehem jr sen "
          "allg bes entspr insb kath ev österr dt engl frz lat resp vs phil med jur abs art",
    "fr": "m mm mme mmes mlle mlles dr pr me mgr st ste p.ex ex cf env boul av fig éd vol chap p.-s n.b c.-à-d c.à.d "
          "vs resp gén col cap lt sgt prof",
    "es": "sr sra srta sres dr dra d dña prof profa lic ing arq gral cap cnel ud uds vd vds p.ej ej av avda c cf "
          "núm pág págs vol cap fig aprox dpto tel máx mín sta sto",
    "it": "sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa avv ing arch geom rag on sen gen col cap s ss p.es es "
          "cfr ecc.mo v vs art artt pag pagg vol fig ca tel",
    "pt": "sr sra srs sras srta dr dra drs prof profa eng arq exmo exma d st sto sta p.ex ex cf av r pág págs vol cap "
          "fig aprox tel gen cel cap ten",
    "nl": "dhr mevr mw dr drs prof ir ing mr ds st jhr bijv bv b.v d.w.z o.a i.p.v m.b.t t.a.v t.o.v t/m enz.v ca evt "
          "incl excl max min resp vgl z.g zgn a.u.b s.v.p jl blz fig",
    "pl": "p pp dr prof mgr inż hab lek doc ks bp abp kard gen płk mjr kpt por sierż św np tzn tzw tj m.in ok wg ww "
          "ul al pl os im red oprac por zob zm ur r woj pow gm tel nr str rys tab pt",
    "cs": "dr mudr mgr ing bc prof doc rndr phdr judr csc p pí sl sv gen plk mjr kpt por např tzv tj tzn mj kupř resp "
          "popř příp cca vč zejm event srov str ul nám tř tel č čís odst písm obr tab",
    "sk": "dr mudr mgr ing bc prof doc p sv gen plk napr tzv t.j tj tzn resp príp cca vr najmä ul nám tel č str obr",
    "ru": "г гг гор ул пр просп пл пер д кв корп стр обл р-н с пос дер т.е т.к т.н т.о т.ч и.о см ср напр др проф акад "
          "доц инж ген полк кап лейт им св о оз р рис табл гл разд руб коп млн млрд тыс тел мин сек",
    "uk": "р рр м вул просп пл пров буд кв корп обл р-н с т.зв т.д.т тобто див пор напр проф акад доц інж ген полк ім "
          "св о оз рис табл гл розд грн коп млн млрд тис тел хв сек",
    "tr": "dr prof doç yrd av sn öğr gör müh mim alb gen yzb bkz örn vs.ler yy cad sok mah apt no tel yak hz st",
    "el": "κ κα κος κ.κ δρ καθ π.χ δηλ βλ πρβλ λεωφ οδ αρ τηλ σελ εικ πιν αγ στρ αντ ντ",
    "ar": "د أ م ا.د ص.ب هـ ق.م",
    "hi": "डॉ श्री श्रीमती प्रो पं कु स्व ई.पू",
    "sv": "dr prof hr fr bl.a t.ex d.v.s dvs fr.o.m t.o.m m.a.o s.k ca kl nr tel jfr resp inkl exkl st",
    "da": "dr prof hr fr bl.a f.eks d.v.s dvs fx ca kl nr tlf jf mht pga vedr inkl ekskl skt",
    "nb": "dr prof hr fr bl.a f.eks d.v.s dvs ca kl nr tlf jf mht pga vedr inkl ekskl st",
    "fi": "dr prof hra rva nti esim mm ns ts ks vrt n klo puh s.o em ko",
    "hu": "dr prof id ifj özv pl ún kb vö ill ld kft.né szt u krt st",
    "ro": "dl dna dlui prof dr ing av d.e ex str bd nr pag vol fig cca cf sf",
}  # fmt: skip
"""Abbreviations that no sentence ends with."""

MAY_END: dict[str, str] = {
    "en": "etc inc ltd co corp jr sr a.m p.m b.c a.d",
    "de": "usw etc u.ä u.v.m u.s.w o.ä jh co jr",
    "fr": "etc cie av.j.-c apr.j.-c",
    "es": "etc cía a.c d.c s.a ee.uu",
    "it": "ecc etc a.c d.c s.p.a s.r.l",
    "pt": "etc cia ltda a.c d.c s.a",
    "nl": "enz etc e.d e.a n.chr v.chr jr",
    "pl": "itd itp etc m.in.ni n.e p.n.e",
    "cs": "atd apod aj atp př.n.l n.l",
    "sk": "atď a pod",
    "ru": "т.д т.п др.д н.э",
    "uk": "т.д т.п ін н.е",
    "tr": "vb vs m.ö m.s a.ş",
    "el": "κ.λπ κλπ κ.ά κ.ο.κ π.μ μ.μ π.χ.χ",
    "sv": "osv m.m m.fl o.s.v",
    "da": "osv m.m m.fl o.s.v",
    "nb": "osv m.m m.fl o.s.v",
    "fi": "jne yms ym",
    "hu": "stb kft bt zrt",
    "ro": "etc ș.a î.hr d.hr",
}
"""Abbreviations that a sentence may end with: a capital letter after them begins the next one."""

BEFORE_NUMBERS: dict[str, str] = {
    "en": "no nos p pp vol vols fig figs ch chap sec art jan feb mar apr jun jul aug sep sept oct nov dec",
    "de": "nr s kap abb tab bd jg abs art ziff rn anm fn",
    "fr": "no nos p pp t vol fig art chap n al",
    "es": "n no p pp vol fig art cap ap",
    "it": "n nn p pp vol fig art cap",
    "pt": "n nº p pp vol fig art cap",
    "nl": "nr nrs p pp blz fig art hfst",
    "pl": "s str rozdz art ust pkt poz t",
    "cs": "s str kap čl odst obr tab sv r",
    "ru": "с стр гл рис ст п пп т № ч",
    "uk": "с стор гл рис ст п пп т ч",
    "tr": "s no md şek bl",
    "el": "σ σσ αρ κεφ άρθ τόμ",
}
"""Abbreviations and words that do not end a sentence if a number follows."""

FIRST_WORDS: dict[str, str] = {
    "en": "the a an it he she they we you i this that these those there but and so in on at if when then however his "
          "her its their our what who why how not no yes as for after",
    "de": "der die das ein eine er sie es wir ihr ich dies diese dieser dieses aber und doch dann da wenn als so nun "
          "im in am auf mit nach was wer wie warum nicht nein ja danach damit sein seine ihre man",
    "fr": "le la les un une il elle ils elles nous vous je ce cette ces mais et puis alors si quand dans en on c d",
    "es": "el la los las un una él ella ellos yo este esta esto pero y luego si cuando en no se su",
    "it": "il lo la i gli le un una egli lei loro io noi questo questa ma e poi se quando in non si",
    "pt": "o a os as um uma ele ela eles eu nós este esta isso mas e depois se quando em não",
    "nl": "de het een hij zij ze wij we ik dit dat deze die maar en dan toen als in op er",
    "pl": "on ona oni ja my to ten ta te ale i potem gdy jeśli w na nie",
    "cs": "on ona oni já my to ten ta ti ale a pak když jestli v na ne",
    "ru": "он она они я мы это этот эта но и потом если когда в на не",
    "uk": "він вона вони я ми це цей ця але і потім якщо коли в на не",
    "tr": "bu şu o ben biz ama ve sonra",
    "sv": "den det en ett han hon de vi jag men och då när i på",
    "da": "den det en et han hun de vi jeg men og da når i på",
    "nb": "den det en et han hun de vi jeg men og da når i på",
    "hu": "a az egy ő ők mi én de és akkor ha nem",
    "fi": "hän he me minä se tämä mutta ja sitten jos kun ei",
}  # fmt: skip
"""Words that begin a sentence when they have a capital, even after initials, "U.S." or an ordinal number."""

ORDINAL_DOTS = "de da nb nn no is fi et lv cs sk pl sl hr sr bs mk hu tr lb eu"
"""Languages that write ordinal numbers with a dot: "am 3. Mai"."""
