package policy

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// none is the word for "no limit"; a limit is never lifted by leaving it out.
const none = "none"

// unit is one suffix of a size. Every unit is binary: 1K is 1024 bytes,
// because memory and file system limits are.
type unit struct {
	suffix string // as printed; "k", "KB" and "KiB" are read as well
	bytes  int64
}

// units is in the order in which sizes are printed: largest first.
var units = [...]unit{{"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}

// parseSize reads "1048576", "64K", "1.5G", "2GiB" as bytes; scale is the
// value of a number without a unit (1, or 1 MiB for max_memory_mb).
func parseSize(text string, scale int64) (int64, *problem) {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	factor, known := unitBytes(strings.ToUpper(text[len(number):]), scale)
	n, ok := scaled(number, factor)
	if !known || !ok {
		return 0, wrong("write bytes or a binary unit: 65536, 64K, 16M, 2G", "%s is not a size", quote(text))
	}
	return n, positive(n, text)
}

// unitBytes returns what one of an upper-case suffix is worth.
func unitBytes(suffix string, scale int64) (int64, bool) {
	switch suffix {
	case "":
		return scale, true
	case "B":
		return 1, true
	}
	for _, u := range units {
		if suffix == u.suffix || suffix == u.suffix+"B" || suffix == u.suffix+"IB" {
			return u.bytes, true
		}
	}
	return 0, false
}

// scaled multiplies a plain decimal number by factor, exactly. It accepts no
// sign, no exponent and no result that is not a whole int64.
func scaled(number string, factor int64) (int64, bool) {
	if number == "" || len(number) > 24 || octal(number) || strings.Trim(number, "0123456789.") != "" || number[0] == '.' || strings.HasSuffix(number, ".") {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// octal reports a leading zero: YAML 1.1 reads such a number in base eight and
// YAML 1.2 in base ten, so the reader cannot know what is meant.
func octal(number string) bool {
	return len(number) > 1 && number[0] == '0' && number[1] != '.'
}

// positive refuses zero: a limit of nothing is a slip, and "none" lifts one.
func positive(n int64, text string) *problem {
	if n <= 0 {
		return wrong(`write "none" for no limit`, "%s: a limit must be more than 0", quote(text))
	}
	return nil
}

// parseSpan reads "30s", "1h30m" or plain seconds as nanoseconds.
func parseSpan(text string) (int64, *problem) {
	const hint = "write seconds or a duration: 30, 45s, 5m, 1h30m"
	plain := text
	if plain != "" && strings.Trim(plain, "0123456789.") == "" {
		plain += "s"
	}
	d, err := time.ParseDuration(plain)
	leading := len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9' // see octal
	if err != nil || leading || len(text) > 40 || strings.HasPrefix(text, "+") {
		return 0, wrong(hint, "%s is not a duration", quote(text))
	}
	if d > 0 && d < time.Millisecond {
		return 0, wrong(hint, "%s: a duration must be at least 1ms", quote(text))
	}
	return int64(d), positive(int64(d), text)
}

// parseCount reads a plain decimal number from 1 to most.
func parseCount(text string, most int64) (int64, *problem) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || octal(text) {
		return 0, wrong("write a decimal number", "%s is not a number", quote(text))
	}
	if n > uint64(most) {
		return 0, wrong("at most "+strconv.FormatInt(most, 10), "%s is too large", quote(text))
	}
	return int64(n), positive(int64(n), text)
}

// formatSize is the inverse of parseSize with scale 1: the largest unit that
// leaves a whole number.
func formatSize(n int64) string {
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// formatSpan is the inverse of parseSpan, without the empty parts that
// time.Duration prints ("1h", not "1h0m0s").
func formatSpan(n int64) string {
	s := time.Duration(n).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// formatCount prints a plain number.
func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

// Bounds of the counts that the kernel itself bounds.
const (
	maxTasks = 4 << 20   // PID_MAX_LIMIT, include/linux/threads.h
	maxFiles = 1 << 30   // above any fs.nr_open
	maxUID   = 1<<32 - 2 // (uid_t)-1 means "no change" to setresuid(2)
	maxCount = math.MaxInt64
)
