"""python3 -m report [--html] < summary.json"""

import sys

from report import render


def main(argv):
    try:
        summary = render.load(sys.stdin.read())
    except render.BadSummary as err:
        print(f"report: {err}", file=sys.stderr)
        return 1
    print((render.page if "--html" in argv else render.text)(summary), end="")
    return 0


sys.exit(main(sys.argv[1:]))
