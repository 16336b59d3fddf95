"""A report as one HTML file: Markdown turned into a page that needs no other file, no script and no network."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 75rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #767676; }
.box { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border: 1px solid #767676; padding: 0.2rem 0.5rem; text-align: left; vertical-align: top; }
th { background: #eee; }
tbody tr:nth-child(even) { background: #f6f6f6; }
td { min-width: 3rem; max-width: 30rem; }
img { max-width: 100%; height: auto; }
pre { white-space: pre-wrap; background: #f6f6f6; border: 1px solid #767676; padding: 0.5rem; font-size: 0.85rem; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
@media print {
  body { max-width: none; font-size: 10pt; }
  .box { overflow: visible; }
  table { font-size: 7.5pt; }
  td { min-width: 0; }
  tr, img { break-inside: avoid; }
}
"""


def page(markdown: str, folder: Path) -> str:
    """The page of a report.

    Args:
        markdown: its text; tables become boxes that scroll, pictures become part of the page.
        folder: where the pictures' paths begin.
    """
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="box" tabindex="0"><table>').replace("</table>", "</table></div>")
    body = re.sub(r'<img src="([^"]+)"', lambda found: f'<img src="{_data(folder, found[1])}"', body)
    title = next((line[2:] for line in markdown.splitlines() if line.startswith("# ")), "Report")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _data(folder: Path, source: str) -> str:
    """A picture's content in place of its path."""
    content = base64.b64encode((folder / html.unescape(source)).read_bytes()).decode()
    return f"data:image/png;base64,{content}"
