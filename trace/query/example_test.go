package query_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/query"
)

// A query is true or false of one record.
func ExampleQuery_Match() {
	q, err := query.Parse(`kind = connect and port = 443 and not addr in 10.0.0.0/8`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, addr := range []string{"192.0.2.1", "10.1.2.3"} {
		e := trace.Event{Kind: trace.KindConnect, Family: "inet", Addr: netip.MustParseAddr(addr), Port: 443}
		fmt.Println(addr, q.Match(&e))
	}
	// Output:
	// 192.0.2.1 true
	// 10.1.2.3 false
}

// An error has its column, and what was probably meant.
func ExampleParse_error() {
	_, err := query.Parse(`kidn = exec`)
	fmt.Println(err)
	// Output:
	// query: column 1: no field is called kidn; did you mean kind?
	//   kidn = exec
	//   ^
}

// Search asks one record after another, and prints what matches.
func ExampleSearch() {
	const record = `{"v":1,"seq":1,"mono":1,"wall":"2026-11-29T16:36:24.000000000Z","kind":"start","run":"r"}` + "\n"
	q, err := query.Parse("kind = start")
	if err != nil {
		fmt.Println(err)
		return
	}
	s := &query.Search{Query: q, Out: os.Stdout}
	if err := s.Record("r", strings.NewReader(record), int64(len(record))); err != nil {
		fmt.Println(err)
		return
	}
	verdict, err := s.Close()
	fmt.Println(verdict, err)
	// Output:
	// record    unsealed, r, 1 of 1 records
	//           no summary: the run is live, or agentguard was killed
	//         1    +0.000s        -  start of run r
	// incomplete <nil>
}
