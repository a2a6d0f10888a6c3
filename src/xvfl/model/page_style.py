"""The style of self-contained HTML pages: screens of any width, light or dark, and paper."""

STYLE = """
:root{--line:#d9dee3;--soft:#f4f6f8;--ink:#1d2733;--dim:#5b6875;--page:#fff;--edge:#8ba0b5;
--good:#155c36;--on-good:#e7f4ec;--bad:#8c1d18;--on-bad:#fdeaea;--same:#3c4a58;--on-same:#eef1f4;
color-scheme:light dark}
@media screen and (prefers-color-scheme:dark){:root{--line:#37424d;--soft:#1d252c;--ink:#e3e9ee;
--dim:#9dabb8;--page:#12181d;--edge:#5c7186;--good:#8fdcb0;--on-good:#173526;--bad:#ffb4ad;
--on-bad:#4a1f1c;--same:#c3ced8;--on-same:#2a343d} .plot img{background:#fff}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;max-width:1080px;margin:0 auto;padding:2rem 1.25rem;
color:var(--ink);background:var(--page)}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .5rem}
h2{font-size:1.2rem;margin:2.4rem 0 .4rem}
p{margin:.4rem 0 .8rem;max-width:46rem} .dim{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:.93rem;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--dim);border-bottom:2px solid var(--line)}
td,th{padding:.5rem .6rem;vertical-align:top} td{border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;white-space:nowrap} td b{font-weight:600}
td small{display:block;color:var(--dim)}
.tag{display:inline-block;padding:.05rem .5rem;border-radius:1rem;font-size:.8rem;
white-space:nowrap;background:var(--on-good);color:var(--good)}
.tag.gain{background:var(--on-bad);color:var(--bad)}
.tag.same{background:var(--on-same);color:var(--same)}
.box{background:var(--soft);border-left:4px solid var(--edge);padding:.6rem 1rem;margin:1rem 0;
max-width:none} .box p{margin:.2rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:.6rem 0}
dt{color:var(--dim)} dd{margin:0} .plot img{width:100%;min-width:640px;height:auto}
.plot{overflow-x:auto}
@media(max-width:700px){
body{padding:1.2rem .9rem} thead{display:none} table,tbody{display:block}
tr{display:grid;grid-template-columns:repeat(3,1fr);border-bottom:1px solid var(--line);
padding:.7rem 0}
td{display:block;border:0;padding:.1rem 0} td.wide{grid-column:1/-1} td.n{text-align:left}
td.n::before{content:attr(data-name);display:block;font-size:.75rem;color:var(--dim)}
dl{grid-template-columns:1fr;gap:0} dd{margin-bottom:.4rem}}
@media print{body{max-width:none;padding:0;font-size:11pt} h2{break-after:avoid}
tr,.box{break-inside:avoid} .tag{border:1px solid currentColor}}
"""
