// SPDX-License-Identifier: Apache-2.0

// Package timeline notices when problems begin and end. It logs both, posts Events, and keeps the problems of the last hour with
// the clients whose queries failed meanwhile, so that an outage can be understood after it.
package timeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/plain"
)

const (
	// Interval is the time between two calls of Observe. Each second, it would keep so much of the program in use that an agent
	// with little memory reads it again and again from the disk (TestMemoryHolds of test/pressure).
	Interval = 5 * time.Second

	kept       = time.Hour       // how long an ended problem stays in the timeline
	settled    = 2 * time.Second // a shorter problem is in the timeline only
	quiet      = time.Minute     // least time between two reports about one problem; one that returns within it is the same
	maxEntries = 200
	maxClients = 16 // failed clients of one problem
	maxNamed   = 4  // of these, in a log line or an Event
)

// Config configures a Timeline.
type Config struct {
	Log *slog.Logger
	// Post writes an Event. It must not block. Nil: none is written.
	Post func(e *Event)
}

// An Event is a Kubernetes Event about this process.
type Event struct {
	Subject string // what it is about: one replaces another about the same
	Warning bool
	Reason  string // a status.Reason, or one with endedSuffix
	Message string
}

// endedSuffix makes the reason of the Event about the end of a problem.
const endedSuffix = "Ended"

// A Timeline holds the current problems and those of the last hour. Its methods are safe for concurrent use.
type Timeline struct {
	cfg Config

	mu      sync.Mutex // guards the fields below
	entries []*entry   // by their begin, at most maxEntries
}

// An entry is one problem from its begin to its end.
type entry struct {
	status.Problem
	began, ended time.Time // ended is zero while it lasts
	seen         bool      // it was in the latest observation
	times        int       // how often it began again within quiet of its end
	failed       uint64
	clients      []status.FailedClient
	reported     bool      // the last report was about its begin
	posts        bool      // that report was an Event too
	reportedAt   time.Time // zero: there was no report
}

// New returns an empty Timeline.
func New(cfg Config) *Timeline { return &Timeline{cfg: cfg} }

// Failures are the queries of one place that failed since the last observation.
type Failures struct {
	Where   string // as in the problems of that place
	Queries uint64
	Clients []status.FailedClient
}

// Observe takes all current problems, and the queries that failed since the last call. It reports what began or ended.
func (t *Timeline) Observe(ctx context.Context, now time.Time, problems []status.Problem, failures []Failures) {
	t.mu.Lock()
	for _, e := range t.entries {
		e.seen = false
	}
	for i := range problems {
		t.seeLocked(&problems[i], now)
	}
	for _, e := range t.entries {
		if !e.seen && e.ended.IsZero() {
			e.ended = now
		}
		for i := range failures {
			if (e.seen || e.ended.Equal(now)) && failures[i].Where == e.Where {
				e.addFailures(&failures[i])
			}
		}
	}
	t.forgetLocked(now)
	var due []entry
	for _, e := range t.entries {
		if !e.isDue(now) {
			continue
		}
		e.reported, e.reportedAt = e.seen, now
		if e.seen {
			e.posts = t.cfg.Post != nil && !t.isPartLocked(e)
		}
		due = append(due, *e)
	}
	t.mu.Unlock()
	for i := range due {
		t.report(ctx, &due[i])
	}
}

// isPartLocked reports whether the problem is part of another one, which names it: with all upstreams of a route down, each of
// thousands of agents should write one Event and not one for each upstream.
func (t *Timeline) isPartLocked(e *entry) bool {
	return e.Reason != status.RouteDown && slices.ContainsFunc(t.entries, func(o *entry) bool {
		return o.Reason == status.RouteDown && o.Where == e.Where && o.seen
	})
}

// seeLocked records that a problem is there.
func (t *Timeline) seeLocked(p *status.Problem, now time.Time) {
	for _, e := range slices.Backward(t.entries) {
		if e.Key() != p.Key() {
			continue
		}
		if !e.ended.IsZero() && now.Sub(e.ended) >= quiet {
			break
		}
		if !e.ended.IsZero() {
			e.ended = time.Time{}
			e.times++
		}
		e.Problem, e.seen = *p, true
		return
	}
	if len(t.entries) == maxEntries {
		oldest := slices.IndexFunc(t.entries, func(e *entry) bool { return !e.ended.IsZero() })
		if oldest < 0 {
			return // /status lists it
		}
		t.entries = slices.Delete(t.entries, oldest, oldest+1)
	}
	t.entries = append(t.entries, &entry{Problem: *p, began: now, seen: true})
}

// forgetLocked drops what ended long ago.
func (t *Timeline) forgetLocked(now time.Time) {
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool { return !e.ended.IsZero() && now.Sub(e.ended) > kept })
}

func (e *entry) addFailures(f *Failures) {
	e.failed += f.Queries
	for _, c := range f.Clients {
		if len(e.clients) == maxClients {
			return
		}
		if !slices.ContainsFunc(e.clients, func(known status.FailedClient) bool { return known.Client == c.Client }) {
			e.clients = append(e.clients, c)
		}
	}
}

// isDue reports whether to report that the problem began or ended.
func (e *entry) isDue(now time.Time) bool {
	switch {
	case e.seen == e.reported:
		return false
	case e.reportedAt.IsZero():
		return now.Sub(e.began) >= settled
	}
	return now.Sub(e.reportedAt) >= quiet
}

// report logs and posts that a problem has begun or ended.
func (t *Timeline) report(ctx context.Context, e *entry) {
	attrs := []slog.Attr{
		slog.String("reason", string(e.Reason)), slog.String("where", e.Where), slog.String("what", plain.Line(e.What)),
	}
	event := Event{Subject: string(e.Reason) + " " + e.Where + " " + e.Subject, Reason: string(e.Reason), Message: e.Where + ": " + e.What}
	if e.seen {
		attrs = append(attrs, slog.String("hint", e.Hint))
		event.Message += " (hint: " + e.Hint + ")"
		level := slog.LevelWarn
		if event.Warning = !e.Reason.IsNotice(); !event.Warning {
			level = slog.LevelInfo
		}
		t.cfg.Log.LogAttrs(ctx, level, "problem began", attrs...)
	} else {
		lasted := e.ended.Sub(e.began).Round(time.Second)
		attrs = append(attrs, slog.Time("since", e.began.UTC()), slog.Duration("lasted", lasted))
		event.Reason += endedSuffix
		event.Message = "ended after " + lasted.String() + ": " + event.Message
		if e.times > 0 {
			attrs = append(attrs, slog.Int("again", e.times))
			event.Message += fmt.Sprintf("; it began again %d times meanwhile", e.times)
		}
		if e.failed > 0 {
			named := e.named()
			attrs = append(attrs, slog.Uint64("failed_queries", e.failed), slog.Any("clients", named))
			event.Message += fmt.Sprintf("; %d queries failed, first those of %s", e.failed, strings.Join(named, ", "))
		}
		t.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "problem ended", attrs...)
	}
	if e.posts {
		t.cfg.Post(&event)
	}
}

// named returns the first clients whose queries failed, each with one of its names.
func (e *entry) named() []string {
	list := make([]string, 0, maxNamed)
	for _, c := range e.clients[:min(len(e.clients), maxNamed)] {
		list = append(list, c.Client+" ("+c.Name+")")
	}
	return list
}

// Describe sets since when the problems of s last, and its timeline.
func (t *Timeline) Describe(s *status.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range slices.Backward(t.entries) {
		entry := status.TimelineEntry{
			Reason: e.Reason, Where: e.Where, Subject: e.Subject, What: e.What, Since: e.began.UTC().Format(time.RFC3339),
			Times: e.times, Failed: e.failed, Clients: slices.Clone(e.clients),
		}
		if e.ended.IsZero() {
			for i := range s.Problems {
				if s.Problems[i].Key() == e.Key() {
					s.Problems[i].Since = entry.Since
				}
			}
		} else {
			entry.Until = e.ended.UTC().Format(time.RFC3339)
		}
		s.Timeline = append(s.Timeline, entry)
	}
}

// Current returns how many problems of each reason last.
func (t *Timeline) Current() map[status.Reason]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := map[status.Reason]int{}
	for _, e := range t.entries {
		if e.ended.IsZero() {
			n[e.Reason]++
		}
	}
	return n
}
