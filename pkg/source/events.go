// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/config"
)

// Reasons of Events.
const (
	ReasonRefused = "ConfigRefused"
	ReasonApplied = "ConfigApplied" // only after a refused one
)

const (
	// After a burst, an agent writes an Event every half minute: a bad edit on 5,000 agents must not overload the API server.
	eventBurst = 4
	eventEvery = 30 * time.Second

	eventTries = 4
	eventLimit = 5 * time.Second // for one attempt

	// A repeated event updates the count of the last Event, as long as the API server keeps that: an hour.
	eventLife = 50 * time.Minute

	maxMessage = 1000 // bytes; the API allows 1024
)

// A Pod is the subject of the Events.
type Pod struct {
	Namespace, Name, UID string
	Node                 string // its node; may be empty
}

// events writes Events, one at a time, the newest first.
type events struct {
	source *Source
	api    *api
	kick   chan struct{}
	limit  *rate.Limiter

	written, failed, dropped atomic.Uint64

	mu      sync.Mutex // guards the following fields
	pending *notice
	bad     bool // the last configuration was refused

	// The following fields belong to run.
	last          notice
	name          string // of the Event object of last
	count         int    // of that Event
	begun         time.Time
	failureLogged bool // the last failure was not logged yet
}

// A notice is the content of an Event.
type notice struct {
	kind, reason, message string
	at                    time.Time
}

func newEvents(s *Source, a *api) *events {
	return &events{
		source: s, api: a, kick: make(chan struct{}, 1), failureLogged: true,
		limit: rate.NewLimiter(rate.Every(eventEvery), eventBurst),
	}
}

// refused posts an Event about a refused configuration.
func (e *events) refused(err error) {
	e.mu.Lock()
	e.bad = true
	e.mu.Unlock()
	e.post(notice{kind: "Warning", reason: ReasonRefused, message: summarize("the running configuration stays: ", err)})
}

// applied posts an Event if the previous configuration was refused.
func (e *events) applied(generation uint64) {
	e.mu.Lock()
	bad := e.bad
	e.bad = false
	e.mu.Unlock()
	if bad {
		e.post(notice{kind: "Normal", reason: ReasonApplied, message: fmt.Sprintf("configuration applied, generation %d", generation)})
	}
}

// post replaces the pending notice.
func (e *events) post(n notice) {
	n.at = e.source.cfg.Now()
	e.mu.Lock()
	if e.pending != nil {
		e.dropped.Add(1)
	}
	e.pending = &n
	e.mu.Unlock()
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// summarize returns the first problem of err after begin, and the number of further problems.
func summarize(begin string, err error) string {
	text := err.Error()
	if bad := (*config.Error)(nil); errors.As(err, &bad) {
		text = bad.Problems[0].String()
		if bad.Path != "" {
			text = bad.Path + ": " + text
		}
		if hint := bad.Problems[0].Hint; hint != "" {
			text += " (hint: " + hint + ")"
		}
		if more := len(bad.Problems) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
	}
	text = begin + text
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	return strings.ToValidUTF8(text, "")
}

// run writes notices until ctx ends.
func (e *events) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.kick:
		}
		if !e.hasPending() {
			continue
		}
		now := e.source.cfg.Now()
		if wait := e.limit.ReserveN(now, 1).DelayFrom(now); !sleep(ctx, wait) {
			return nil
		}
		e.mu.Lock()
		n := e.pending
		e.pending = nil
		e.mu.Unlock()
		if n != nil {
			e.deliver(ctx, n)
		}
	}
}

// hasPending reports whether there is a notice to write.
func (e *events) hasPending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending != nil
}

// deliver writes one notice, with a few attempts.
func (e *events) deliver(ctx context.Context, n *notice) {
	var p backoff
	for try := 1; ; try++ {
		err := e.source.recovering("writing an event", func() error { return e.write(ctx, n) })
		switch {
		case err == nil:
			e.written.Add(1)
			e.failureLogged = true
			return
		case ctx.Err() != nil:
			return
		case try == eventTries || denied(err):
			e.failed.Add(1)
			if e.failureLogged {
				hint := "check that this host can reach the API server"
				if asStatusError(err) != nil {
					hint = "grant create and patch of events in namespace " + e.source.cfg.Pod.Namespace + " to this process"
				}
				e.source.cfg.Log.WarnContext(ctx, "writing event failed", "reason", n.reason, "err", err, "hint", hint)
			}
			e.failureLogged = false
			return
		}
		if !sleep(ctx, p.after(err)) {
			return
		}
	}
}

// denied reports whether a further attempt is useless.
func denied(err error) bool {
	no := asStatusError(err)
	return no != nil && no.Code/100 == 4 && no.Code != http.StatusTooManyRequests
}

// write writes a notice as a new Event, or updates the count of the last one.
func (e *events) write(ctx context.Context, n *notice) error {
	if n.reason == e.last.reason && n.message == e.last.message && n.at.Sub(e.begun) < eventLife {
		err := e.send(ctx, call{
			method: http.MethodPatch, path: []string{"namespaces", e.source.cfg.Pod.Namespace, "events", e.name},
			kind: "application/merge-patch+json",
			body: map[string]any{"count": e.count + 1, "lastTimestamp": formatTime(n.at)},
		})
		if err == nil {
			e.count++
			return nil
		}
		if no := asStatusError(err); no == nil || no.Code != http.StatusNotFound {
			return err
		}
	}
	pod := &e.source.cfg.Pod
	name := fmt.Sprintf("%s.%x", pod.Name, n.at.UnixNano())
	err := e.send(ctx, call{
		method: http.MethodPost, path: []string{"namespaces", pod.Namespace, "events"},
		kind: "application/json", body: eventBody(pod, n, name),
	})
	if no := asStatusError(err); err != nil && (no == nil || no.Code != http.StatusConflict) { // a conflict: it was written, and the response was lost
		return err
	}
	e.last, e.name, e.count, e.begun = *n, name, 1, n.at
	return nil
}

// send sends a request and ignores the response.
func (e *events) send(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	resp, err := e.api.do(ctx, c)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// eventBody returns an Event of the core group, which `kubectl describe pod` shows.
func eventBody(pod *Pod, n *notice, name string) map[string]any {
	about := map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": pod.Namespace, "name": pod.Name}
	if pod.UID != "" {
		about["uid"] = pod.UID
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"namespace": pod.Namespace, "name": name},
		"involvedObject": about,
		"type":           n.kind, "reason": n.reason, "message": n.message,
		"firstTimestamp": formatTime(n.at), "lastTimestamp": formatTime(n.at), "count": 1,
		"source": map[string]any{"component": "node-cache", "host": pod.Node},
	}
}

// formatTime formats a time for the API.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
