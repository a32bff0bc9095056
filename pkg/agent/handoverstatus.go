// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/handover"
)

// HandoverStatus describes the takeover at the start and the handover to a successor.
type HandoverStatus struct {
	Socket    string `json:"socket"`
	Listening bool   `json:"listening"`          // a successor can request the sockets
	Taken     string `json:"taken"`              // takeover at the start: a handover.Outcome
	From      string `json:"from,omitempty"`     // token of the predecessor
	Why       string `json:"why,omitempty"`      // why the predecessor refused
	WaitsFor  string `json:"waitsFor,omitempty"` // what the start waits for
	To        string `json:"to,omitempty"`       // token of the successor
	Given     string `json:"given,omitempty"`    // time since the handover
	Asked     uint64 `json:"asked"`              // agents that requested the sockets
	Abandoned uint64 `json:"abandoned"`          // agents that received the sockets and ended before they took over
	LastError string `json:"lastError,omitempty"`
}

// status returns nil if handover.socket is not set.
func (h *socketHandover) status(now time.Time) *HandoverStatus {
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

// handoverStats returns the handover's metrics; nil: handover.socket is not set.
func (a *Agent) handoverStats() *handover.Stats {
	if a.handover == nil {
		return nil
	}
	stats := a.handover.recorder.Stats()
	return &stats
}

// waiting returns what the start waits for; empty: nothing.
func (h *socketHandover) waiting() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitsFor
}

// notReady returns an error if this agent does not serve yet or has handed over.
func (h *socketHandover) notReady() error {
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

// handoverProblems reports what keeps a successor from taking over.
func handoverProblems(s *HandoverStatus) []Problem {
	if s == nil || s.LastError == "" || s.Given != "" {
		return nil
	}
	return []Problem{{
		Where: "handover", What: s.LastError,
		Hint: "check that the folder of handover.socket exists, is writable, and is used by no other agent; the agent retries by itself",
	}}
}
