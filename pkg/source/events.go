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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/task"
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
		text = bad.Describe(bad.Problems[0])
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
		wait := e.limit.ReserveN(now, 1).DelayFrom(now)
		if task.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // it was asked to end
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
	var p task.Backoff
	for try := 1; ; try++ {
		err := e.source.recovering(ctx, "writing an event", func() error { return e.write(ctx, n) })
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
				if statusCode(err) > 0 {
					hint = "grant create and patch of events in namespace " + e.source.cfg.Pod.Namespace + " to this process"
				}
				e.source.cfg.Log.WarnContext(ctx, "writing event failed", "reason", n.reason, "err", err, "hint", hint)
			}
			e.failureLogged = false
			return
		}
		if task.Sleep(ctx, pauseAfter(&p, err)) != nil {
			return
		}
	}
}

// denied reports whether a further attempt is useless.
func denied(err error) bool {
	code := statusCode(err)
	return code/100 == 4 && code != http.StatusTooManyRequests
}

// write writes a notice as a new Event, or updates the count of the last one.
func (e *events) write(ctx context.Context, n *notice) error {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	client, err := e.api.open()
	if err != nil {
		return err
	}
	pod := &e.source.cfg.Pod
	if n.reason == e.last.reason && n.message == e.last.message && n.at.Sub(e.begun) < eventLife {
		patch := fmt.Sprintf(`{"count": %d, "lastTimestamp": %q}`, e.count+1, n.at.UTC().Format(time.RFC3339))
		err := client.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("events").Name(e.name).
			MaxRetries(0).Body([]byte(patch)).Do(ctx).Error()
		if err == nil {
			e.count++
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return withoutURL(err)
		}
	}
	name := fmt.Sprintf("%s.%x", pod.Name, n.at.UnixNano())
	err = client.Post().Namespace(pod.Namespace).Resource("events").MaxRetries(0).Body(newEvent(pod, n, name)).Do(ctx).Error()
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // it was written, and the response was lost
		return withoutURL(err)
	}
	e.last, e.name, e.count, e.begun = *n, name, 1, n.at
	return nil
}

// newEvent returns an Event of the core group, which `kubectl describe pod` shows.
func newEvent(pod *Pod, n *notice, name string) *corev1.Event {
	at := metav1.NewTime(n.at)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)},
		Type:           n.kind, Reason: n.reason, Message: n.message,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: "node-cache", Host: pod.Node},
	}
}
