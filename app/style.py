"""The report's style sheet: system fonts, one column, light and dark, printable."""

CSS = """
:root { --ink: #1a1a1a; --paper: #ffffff; --soft: #666; --line: #ddd; --panel: #f6f7f8; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181a; --soft: #a0a4a8; --line: #3a3d40; --panel: #202326; --accent: #56b4e9; }
  img { background: #fff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .75rem; } h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
.kind { color: var(--soft); margin: 0; font-size: .85rem; letter-spacing: .04em; text-transform: uppercase; }
section { margin-top: 2.2rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: .5rem 1.5rem; margin: 0; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; }
.verdict { background: var(--panel); border-left: 5px solid var(--accent); padding: 1rem 1.25rem; border-radius: 4px; }
.verdict.clean { border-color: #009e73; } .verdict.not-comparable { border-color: #d55e00; }
.verdict p { margin: .35rem 0; } .verdict p:first-of-type { font-weight: 600; }
img { max-width: 100%; height: auto; border: 1px solid var(--line); border-radius: 4px; }
.note { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; } th { color: var(--soft); font-weight: 600; }
pre { overflow: auto; max-height: 30rem; background: var(--panel); padding: 1rem; font-size: .8rem; }
summary { cursor: pointer; color: var(--accent); }
"""
