from colortext import bold


def total(lines):
    return sum(int(line.split()[1]) for line in lines if line.strip())


def report(lines):
    return bold("total") + " %d" % total(lines)
