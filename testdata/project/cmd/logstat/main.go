// Command logstat prints the summary of access logs as JSON.
//
//	logstat [-top N] [FILE...]     (standard input when no file is named)
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	"example.com/logstat/accesslog"
)

func main() {
	top := flag.Int("top", 3, "how many paths to list")
	flag.Parse()
	if err := run(os.Stdout, flag.Args(), *top); err != nil {
		fmt.Fprintln(os.Stderr, "logstat:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, names []string, top int) error {
	in := io.Reader(os.Stdin)
	if len(names) > 0 {
		var all []io.Reader
		for _, name := range names {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			all = append(all, f)
		}
		in = io.MultiReader(all...)
	}
	sum, err := accesslog.Summarize(in, top)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(sum)
}
