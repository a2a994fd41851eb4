# SPDX-License-Identifier: Apache-2.0
"""The ratio tables and plots of run.py's results."""
import html
import math
import statistics

# Where a page has the tables: of allreduce, of all other operations.
MARKS = {True: ("<!-- peers: begin -->", "<!-- peers: end -->"),
         False: ("<!-- collectives: begin -->", "<!-- collectives: end -->")}
FAST = ("broadcast", "allgather", "reduce", "alltoall")  # 1.5 times as fast from 256 KiB up
KIB, MIB = 1 << 10, 1 << 20
# What is compared: a table each. mode, our backend, title.
TABLES = (("host", "gradus", "One host, registered buffers (`gr_alloc`)"),
          ("host", "gradus-malloc", "One host, ordinary buffers (`malloc`)"),
          ("tcp", "gradus-tcp", "TCP over loopback"),
          ("hosts-1gbit", "gradus-tcp", "Four hosts at 1 Gbit/s, 0.1 ms"),
          ("hosts-10gbit", "gradus-tcp", "Four hosts at 10 Gbit/s, 0.1 ms"))
COLORS = {"gradus": "#c0392b", "ompi": "#2471a3", "mpich": "#1e8449", "gloo": "#b7950b",
          "torch": "#7d3c98", "ceiling": "#333333"}


def goal(operation, mode, ours, ranks, size):
    """The ratio of our time to the best peer's that is promised."""
    if operation != "allreduce":
        return 1 / 1.5 if ours == "gradus" and operation in FAST and size >= 256 * KIB else 1.0
    if mode in ("tcp", "hosts-10gbit"):
        return 1 / 1.3
    if mode == "hosts-1gbit":
        return 1.0
    if ours == "gradus-malloc":
        return 1 / 1.3 if size >= MIB else 1.0
    if size >= MIB:
        return 1 / 3
    return 1 / 2 if ranks >= 4 and 16 * KIB <= size <= 256 * KIB else 1.0


def size_text(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_text(us):
    if us < 10:
        return f"{us:.2f}"
    return f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def choose(results, figure):
    """The same results with one figure of each round: "mean" or "median" of its operations."""
    def pick(node):
        """Down to the lists of rounds."""
        if isinstance(node, dict):
            return {key: pick(value) for key, value in node.items()}
        return [round_[figure] for round_ in node]
    return results | {"figure": figure, "times_us": pick(results["times_us"])}


def medians(rows):
    """Backend -> size -> median over the rounds."""
    return {name: {int(size): statistics.median(times) for size, times in sizes.items()}
            for name, sizes in rows.items()}


def is_peer(name):
    return not name.startswith(("gradus", "ceiling"))


def cells(rows, ours, size):
    """Our time, the best peer and its time; None where something was not measured."""
    peers = {name: sizes[size] for name, sizes in rows.items() if is_peer(name) and size in sizes}
    if size not in rows.get(ours, {}) or not peers:
        return None
    best = min(peers, key=peers.get)
    return rows[ours][size], best, peers[best]


def groups_of(results, operation, mode):
    """Number of ranks -> backend -> size -> median."""
    modes = results["times_us"].get(operation, {})
    return {int(n): medians(rows) for n, rows in modes.get(mode, {}).items()}


def table(results, operation, mode, ours, title):
    groups = groups_of(results, operation, mode)
    lines, held, total = [], 0, 0
    sizes = results["sizes"] if operation != "barrier" else results["sizes"][:1]
    for size in sizes:
        words = [size_text(size) if operation != "barrier" else "-"]
        for ranks in sorted(groups):
            cell = cells(groups[ranks], ours, size)
            if cell is None:
                words.append("-")
                continue
            time_us, best, best_us = cell
            ratio, wanted = time_us / best_us, goal(operation, mode, ours, ranks, size)
            total += 1
            held += ratio <= wanted
            text = (f"{ratio:.2f} ({time_text(time_us)} : {time_text(best_us)} {best})")
            words.append(text if ratio <= wanted else f"**{text}** > {wanted:.2f}")
        lines.append("| " + " | ".join(words) + " |")
    if total == 0:
        return ""
    head = " | ".join(f"{n} ranks" for n in sorted(groups))
    return (f"**{title}**: {held} of {total} cells reach their goal.\n\n| size | {head} |\n"
            f"| --- |{' --- |' * len(groups)}\n" + "\n".join(lines) + "\n")


CEILINGS = (
    ("ceiling", (0.85, 0.7),
     "**Against the ceiling**: the share of the speed of a bare reduction in shared memory, "
     "without any library, that registered buffers reach (`bench_ceiling`; in brackets its time in "
     "us)."),
    ("ceiling-tcp", (0, 0),
     "**Against the ceiling of TCP**: the same beside bare sends and receives over loopback, "
     "without headers, by halving and doubling (`bench_ceiling -t`)."))


def ceiling_table(results, name, goals, title):
    """How much of the speed of a bare reduction is reached."""
    groups = {int(n): sizes for n, sizes in results.get(name, {}).items()}
    lines = []
    for size in results["sizes"] if groups else []:
        words = [size_text(size)]
        for ranks in sorted(groups):
            pairs = groups[ranks].get(str(size))
            if not pairs:
                words.append("-")
                continue
            share = statistics.median(bare / ours for bare, ours in pairs)
            wanted = goals[0] if size >= 256 * KIB else goals[1]
            text = f"{100 * share:.0f} % ({time_text(statistics.median(b for b, _ in pairs))})"
            words.append(text if share >= wanted else f"**{text}** < {100 * wanted:.0f} %")
        lines.append("| " + " | ".join(words) + " |")
    if not lines:
        return ""
    head = " | ".join(f"{n} ranks" for n in sorted(groups))
    return (f"{title}\n\n| size | {head} |\n| --- |{' --- |' * len(groups)}\n" +
            "\n".join(lines) + "\n")


def bound_text(results):
    """25 MiB at 1 Gbit/s against what the wire permits."""
    payload = results.get("payload", {}).get("hosts-1gbit")
    rows = groups_of(results, "allreduce", "hosts-1gbit").get(4, {})
    ours = rows.get("gradus-tcp", {}).get(25 * MIB)
    if not payload or ours is None:
        return ""
    rate = max(payload)  # what the wire can do: other load only takes away from it
    bound_us = 2 * 3 / 4 * 25 * MIB / rate * 1e6
    best = min((sizes[25 * MIB], name) for name, sizes in rows.items()
               if is_peer(name) and 25 * MIB in sizes) if len(rows) > 1 else None
    peer = f"; the best peer, {best[1]}, {best[0] / bound_us:.3f}" if best else ""
    return (f"At 1 Gbit/s one bulk TCP stream carries {rate * 8 / 1e6:.0f} Mbit/s of payload in "
            f"the same run; 25 MiB over four hosts cannot take less than {bound_us / 1e3:.1f} ms "
            f"with it. Gradus takes {ours / bound_us:.3f} of that (goal: 1.03){peer}.\n")


def markdown(results):
    known = ", ".join(f"{name} {version}" for name, version in results["versions"].items()
                      if name not in ("kernel", "cores", "Gradus"))
    operations = results["operations"]
    parts = [f"`{results['command']}`, f32, {results['versions']['cores']} "
             f"cores, {known}. Each cell: Gradus's time / the best peer's time (both in us, and "
             f"which peer); medians over {results['rounds']} rounds, in which all took turns, of "
             f"the {results['figure']} time of an operation. **Bold**: "
             "short of the goal behind it.\n"]
    for operation in operations:
        title = f"{operation}. " if operations != ["allreduce"] else ""
        parts += [table(results, operation, mode, ours, title + text)
                  for mode, ours, text in TABLES]
    parts += [bound_text(results)] + [ceiling_table(results, *what) for what in CEILINGS]
    return "\n".join(part for part in parts if part)


# ---- Plots ---------------------------------------------------------------------------------------
WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 300, 60, 40, 70


def color(name):
    return next((c for start, c in COLORS.items() if name.startswith(start)), "#777")


def panel(rows, sizes, left, title):
    points = [us for times in rows.values() for us in times.values()]
    low, high = math.floor(math.log10(min(points))), math.ceil(math.log10(max(points)))
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size):
        return left + WIDTH * (math.log2(size) - first) / max(last - first, 1)

    def y(us):
        return TOP + HEIGHT * (1 - (math.log10(us) - low) / max(high - low, 1))

    out = [f'<text x="{left}" y="{TOP - 8}" font-weight="bold">{html.escape(title)}</text>',
           f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
           f'stroke="#999"/>']
    for power in range(low, high + 1):
        out.append(f'<line x1="{left}" y1="{y(10 ** power):.1f}" x2="{left + WIDTH}" '
                   f'y2="{y(10 ** power):.1f}" stroke="#ddd"/><text x="{left - 5}" '
                   f'y="{y(10 ** power) + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    for size in sizes[::max(len(sizes) // 6, 1)]:
        out.append(f'<text x="{x(size):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
                   f'{size_text(size)}</text>')
    ends = []
    for name, times in sorted(rows.items()):
        line = " ".join(f"{x(size):.1f},{y(us):.1f}" for size, us in sorted(times.items()))
        dashes = ' stroke-dasharray="5 3"' if name in ("gradus-malloc", "ceiling") else ""
        thick = 2.5 if name.startswith("gradus") else 1.2
        out.append(f'<polyline fill="none" stroke="{color(name)}" stroke-width="{thick}"{dashes} '
                   f'points="{line}"><title>{html.escape(name)}</title></polyline>')
        ends.append((y(times[max(times)]), name))
    at = TOP + 6
    for _, name in sorted(ends):  # the legend, in the order of the lines' right ends
        out.append(f'<text x="{left + 8}" y="{at + 8}" fill="{color(name)}" font-size="10">'
                   f'{html.escape(name)}</text>')
        at += 12
    return out


def plot(results, operation, mode):
    groups = groups_of(results, operation, mode)
    body = []
    for i, ranks in enumerate(sorted(groups)):
        body += panel(groups[ranks], results["sizes"], LEFT + i * (WIDTH + GAP),
                      f"{operation}, {mode}, {ranks} ranks: us")
    width = LEFT + len(groups) * (WIDTH + GAP)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
                      f'height="{TOP + HEIGHT + 40}" font-family="sans-serif" font-size="12">',
                      '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def write_docs(results, text, docs):
    folder = docs / "performance"
    folder.mkdir(exist_ok=True)
    allreduce = "allreduce" in results["operations"]
    for mode in results["times_us"].get("allreduce", {}):
        name = f"allreduce-{mode}.svg"
        (folder / name).write_text(plot(results, "allreduce", mode))
        text += f"\n![allreduce, {mode}](performance/{name})\n"
    begin, end = MARKS[allreduce]
    page = docs / "performance.md"
    whole = page.read_text()
    before, rest = whole.split(begin, 1)
    after = rest.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
