// Package accesslog parses lines of the "combined" web server log format and
// sums them up.
package accesslog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Entry is one request.
type Entry struct {
	Client string
	Time   time.Time
	Method string
	Path   string
	Status int
	Bytes  int64 // 0 when the log has "-"
}

// ErrFormat is wrapped by every error that Parse returns.
var ErrFormat = errors.New("not a combined log line")

const timeLayout = "02/Jan/2006:15:04:05 -0700"

// Parse reads one line, for example
//
//	192.0.2.7 - - [05/Mar/2024:10:11:12 +0000] "GET /a HTTP/1.1" 200 512 "-" "curl/8"
func Parse(line string) (Entry, error) {
	client, rest, ok := strings.Cut(line, " ")
	if !ok || client == "" {
		return Entry{}, fmt.Errorf("%w: no client", ErrFormat)
	}
	stamp, rest, ok := between(rest, '[', ']')
	if !ok {
		return Entry{}, fmt.Errorf("%w: no time", ErrFormat)
	}
	at, err := time.Parse(timeLayout, stamp)
	if err != nil {
		return Entry{}, fmt.Errorf("%w: time %q", ErrFormat, stamp)
	}
	request, rest, ok := between(rest, '"', '"')
	if !ok {
		return Entry{}, fmt.Errorf("%w: no request", ErrFormat)
	}
	method, target, ok := strings.Cut(request, " ")
	if !ok {
		return Entry{}, fmt.Errorf("%w: request %q", ErrFormat, request)
	}
	path, _, _ := strings.Cut(target, " ")
	status, size, err := numbers(rest)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Client: client, Time: at, Method: method, Path: path, Status: status, Bytes: size}, nil
}

// between returns what stands between the first open and the next close.
func between(s string, open, end byte) (inside, rest string, ok bool) {
	i := strings.IndexByte(s, open)
	if i < 0 {
		return "", "", false
	}
	s = s[i+1:]
	i = strings.IndexByte(s, end)
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

func numbers(rest string) (status int, size int64, err error) {
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("%w: no status and size", ErrFormat)
	}
	status, err = strconv.Atoi(fields[0])
	if err != nil || status < 100 || status > 599 {
		return 0, 0, fmt.Errorf("%w: status %q", ErrFormat, fields[0])
	}
	if fields[1] == "-" {
		return status, 0, nil
	}
	size, err = strconv.ParseInt(fields[1], 10, 64)
	if err != nil || size < 0 {
		return 0, 0, fmt.Errorf("%w: size %q", ErrFormat, fields[1])
	}
	return status, size, nil
}

// PathCount is how often a path was asked for.
type PathCount struct {
	Path  string `json:"path"`
	Count int    `json:"count"`
}

// Summary is the sum of many lines.
type Summary struct {
	Requests int            `json:"requests"`
	Bytes    int64          `json:"bytes"`
	Bad      int            `json:"bad_lines"`
	Clients  int            `json:"clients"`
	Status   map[string]int `json:"status"` // by class: "2xx"
	Top      []PathCount    `json:"top_paths"`
}

// Summarize reads lines until EOF. Lines that do not parse are counted, not
// refused. top is how many paths to keep, the most asked for first.
func Summarize(r io.Reader, top int) (Summary, error) {
	sum := Summary{Status: map[string]int{}}
	paths, clients := map[string]int{}, map[string]bool{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		e, err := Parse(lines.Text())
		if err != nil {
			sum.Bad++
			continue
		}
		sum.Requests++
		sum.Bytes += e.Bytes
		sum.Status[strconv.Itoa(e.Status/100)+"xx"]++
		paths[e.Path]++
		clients[e.Client] = true
	}
	sum.Clients = len(clients)
	sum.Top = rank(paths, top)
	return sum, lines.Err()
}

func rank(paths map[string]int, top int) []PathCount {
	list := make([]PathCount, 0, len(paths))
	for p, n := range paths {
		list = append(list, PathCount{p, n})
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].Count != list[j].Count {
			return list[i].Count > list[j].Count
		}
		return list[i].Path < list[j].Path
	})
	return list[:min(top, len(list))]
}
