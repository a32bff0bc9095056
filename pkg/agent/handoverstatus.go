// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/handover"
)

// HandoverStatus is what the agent has taken over, and handed over.
type HandoverStatus struct {
	Socket    string `json:"socket"`
	Listening bool   `json:"listening"`          // a successor can ask for the sockets
	Taken     string `json:"taken"`              // at the start: a handover.Outcome… in its word
	From      string `json:"from,omitempty"`     // the agent that was asked
	Why       string `json:"why,omitempty"`      // it refused
	WaitsFor  string `json:"waitsFor,omitempty"` // what the start waits for
	To        string `json:"to,omitempty"`       // the agent that has taken over from this one
	Given     string `json:"given,omitempty"`    // how long ago
	Asked     uint64 `json:"asked"`              // agents that asked for the sockets
	Abandoned uint64 `json:"abandoned"`          // those that had them and ended before they took over
	LastError string `json:"lastError,omitempty"`
}

// status is nil if there is no handover.socket.
func (h *hand) status(now time.Time) *HandoverStatus {
	if h == nil {
		return nil
	}
	stats := h.recorder.Stats()
	s := &HandoverStatus{
		Socket: h.path, Listening: stats.Listening, Taken: cmp.Or(stats.Taken, handover.OutcomeNone), From: stats.From, Why: stats.Why,
		WaitsFor: h.waiting(), To: stats.To, Asked: stats.Asked, Abandoned: stats.Abandoned, LastError: stats.LastError,
	}
	if stats.Given {
		s.Given = now.Sub(stats.GivenAt).Round(time.Second).String()
	}
	return s
}

// handoverStats are for the metrics; nil: there is no handover.socket.
func (a *Agent) handoverStats() *handover.Stats {
	if a.hand == nil {
		return nil
	}
	stats := a.hand.recorder.Stats()
	return &stats
}

// waiting is what a start waits for; empty: nothing.
func (h *hand) waiting() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// notReady says that this agent does not serve yet, or not any more.
func (h *hand) notReady() error {
	if h == nil {
		return nil
	}
	if stats := h.recorder.Stats(); stats.Given {
		return errors.New("handed over to agent " + stats.To)
	}
	if what := h.waiting(); what != "" {
		return errors.New("starting: waits for " + what)
	}
	return nil
}

// handoverProblems says what keeps a successor from taking over.
func handoverProblems(s *HandoverStatus) []Problem {
	if s == nil || s.LastError == "" || s.Given != "" {
		return nil
	}
	return []Problem{{
		Where: "handover", What: s.LastError,
		Hint: "see that the folder of handover.socket is there and can be written to, and that no other agent uses it; it is tried again by itself",
	}}
}
