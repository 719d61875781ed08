package supervisor

import (
	"fmt"

	"github.com/agentguard/agentguard/internal/anchor"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// readConfig starts what takes signed notes elsewhere, if the administrator
// wants that. With a file that says so and cannot be read, nothing is run.
func (s *sealer) readConfig() error {
	if s.r.cfg.SealFile == "" {
		return nil
	}
	c, err := anchor.Read(s.r.cfg.SealFile)
	if err != nil {
		return &Refusal{What: "how to seal the record cannot be read", Err: err, Remedy: "correct it, or remove it"}
	}
	s.durable, s.anchors = c.Durable, anchor.Start(c.Anchor)
	return nil
}

// anchor takes a note to the administrator's places.
func (s *sealer) anchor(kind string, note []byte) {
	line, err := (&seal.AnchorLine{Kind: kind, Run: s.r.id, Note: string(note)}).Line()
	if err == nil {
		s.anchors.Offer(line)
	}
}

// anchorCounts ends the checkpoints, and says for the summary how many of them
// did not reach an anchor.
func (s *sealer) anchorCounts() []trace.Count {
	s.end()
	if n, _ := s.anchors.Lost(); n > 0 {
		return []trace.Count{{Name: "anchor.lost", N: n}}
	}
	return nil
}

// anchorEnd takes the end of the run to the anchors, waits for them as long as
// they may take, and notes in the host's log what did not arrive. The caller is told, too: the
// result is stored and sealed by then.
func (s *sealer) anchorEnd(res *runs.Result, last, logHead []byte) error {
	if s.anchors == nil {
		return nil
	}
	before, _ := s.anchors.Lost()
	s.anchor(seal.AnchorSeal, last)
	s.anchor(seal.AnchorLog, logHead)
	s.anchors.Close()
	after, err := s.anchors.Lost()
	s.anchors = nil
	if after > 0 {
		res.Error = joinText(res.Error, fmt.Sprintf("%d of the notes of this record did not arrive: %v", after, err))
	}
	if after > before {
		why := err.Error()
		e := s.entry(seal.LogUnanchor, nil)
		e.SHA256, e.Why = "", why[:min(len(why), 500)]
		_, err := s.vault.Append(s.host, e, false)
		return err
	}
	return nil
}
