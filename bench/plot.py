# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG, without a library: panels side by side, each with lines and points over a
logarithmic axis."""
import html
import math

WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 300, 70, 40, 80


class Panel:
    """`x` by its logarithm to base 2; `y` from 0 to `top`, or by its logarithm to base 10 from
    `bottom` on."""

    def __init__(self, number, title, xs, top, bottom=0):
        self.left = LEFT + number * (WIDTH + GAP)
        self.first, self.last = math.log2(min(xs)), math.log2(max(xs))
        self.top, self.bottom = top, bottom
        self.body = [f'<text x="{self.left}" y="{TOP - 8}" font-weight="bold">'
                     f'{html.escape(title)}</text>',
                     f'<rect x="{self.left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" '
                     f'fill="none" stroke="#999"/>']
        for x in xs:
            self.body.append(f'<text x="{self.x(x):.1f}" y="{TOP + HEIGHT + 16}" '
                             f'text-anchor="middle">{x}</text>')
        self.legend = []

    def x(self, value):
        return self.left + WIDTH * (math.log2(value) - self.first) / max(self.last - self.first, 1)

    def y(self, value):
        if self.bottom > 0:
            low, high = math.log10(self.bottom), math.log10(self.top)
            share = (math.log10(max(value, self.bottom)) - low) / (high - low)
        else:
            share = value / self.top
        return TOP + HEIGHT * (1 - min(share, 1))

    def rule(self, value, text):
        self.body.append(f'<line x1="{self.left}" y1="{self.y(value):.1f}" '
                         f'x2="{self.left + WIDTH}" y2="{self.y(value):.1f}" stroke="#ddd"/>'
                         f'<text x="{self.left - 5}" y="{self.y(value) + 4:.1f}" '
                         f'text-anchor="end">{html.escape(text)}</text>')

    def line(self, name, color, points):
        """`points`: pairs, by x."""
        at = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.body.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.6" '
                         f'points="{at}"><title>{html.escape(name)}</title></polyline>')
        self._name(name, color)

    def dots(self, name, color, points):
        for x, y in points:
            self.body.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5" '
                             f'fill="{color}"><title>{html.escape(name)}</title></circle>')
        self._name(name, color)

    def _name(self, name, color):
        if (name, color) not in self.legend:
            self.legend.append((name, color))

    def svg(self):
        names = [f'<text x="{self.left + 8}" y="{TOP + 16 + 12 * i}" fill="{color}" '
                 f'font-size="10">{html.escape(name)}</text>'
                 for i, (name, color) in enumerate(self.legend)]
        return self.body + names


def page(panels):
    width = LEFT + len(panels) * (WIDTH + GAP)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
                      f'height="{TOP + HEIGHT + 30}" font-family="sans-serif" font-size="12">',
                      '<rect width="100%" height="100%" fill="white"/>',
                      *(part for panel in panels for part in panel.svg()), "</svg>", ""])
