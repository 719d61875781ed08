package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/agentguard/agentguard/trace"
)

// eventCosts prints what the runs of a state directory say of themselves: how
// many events the sensor told, and what CPU time their readers took (decoding,
// judging, writing the record), kernel's share of the reading included.
func eventCosts(w io.Writer, state string) error {
	records, err := filepath.Glob(filepath.Join(state, "runs", "*", "trace.jsonl"))
	if err != nil {
		return err
	}
	var events, reader, bytes, lines, lost uint64
	for _, name := range records {
		sum, size, err := summary(name)
		if err != nil {
			return err
		}
		counts := map[string]uint64{}
		for _, c := range sum.Counts {
			counts[c.Name] = c.N
		}
		events += counts["reader.events"]
		reader += counts["reader.cpu_ns"]
		bytes += uint64(size)
		lines += sum.Records
		lost += sum.Lost
	}
	if events == 0 {
		return fmt.Errorf("%s: no record counts its events", state)
	}
	_, err = fmt.Fprintf(w, "one event: %d ns of the reader, of %d in %d runs (%d lost); %d bytes a record\n", reader/events, events, len(records), lost, bytes/max(lines, 1))
	return err
}

func summary(name string) (*trace.Event, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	sum := &trace.Event{}
	if !trace.NewReader(nil).Last(f, st.Size(), sum) || sum.Kind != trace.KindSummary {
		return nil, 0, fmt.Errorf("%s does not end with a summary", name)
	}
	return sum, st.Size(), nil
}
