// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// errDefect is what the other end is told of a panic.
var errDefect = errors.New("a defect, the log has its stack")

// NoteDefect logs and counts a panic that was recovered from. What hands over, or takes over, is
// not to end a process that answers a node's queries.
func NoteDefect(log *slog.Logger, tally *Tally, defect any) {
	log.Error("recovered from a panic", "where", "handover", "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
	tally.Note(func(s *Stats) { s.Panics++ })
}

// recovered, deferred, ends one step of the giver's at its panic.
func (g *Giver) recovered() {
	if defect := recover(); defect != nil {
		NoteDefect(g.cfg.Log, g.cfg.Tally, defect)
	}
}

// safely does what the giver was configured with. A panic in it is an error.
func (g *Giver) safely(do func() error) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			NoteDefect(g.cfg.Log, g.cfg.Tally, defect)
			err = errDefect
		}
	}()
	return do()
}
