// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
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
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
)

// Reasons of Events.
const (
	ReasonRefused = "ConfigRefused"
	ReasonApplied = "ConfigApplied" // written only after ConfigRefused
	ReasonRestart = "ConfigNeedsRestart"
)

const (
	// After a burst, an agent writes an Event every half minute: a bad edit on 5,000 agents must not overload the API server. An outage
	// of the API server and one of the upstreams are some ten Events each, with their ends. client-go's recorder has a burst of 25 for each Pod.
	eventBurst = 25
	eventEvery = 30 * time.Second

	maxWaiting = 16               // Events that wait; beyond it the oldest is dropped
	spreadOver = 10 * time.Second // so long do 5,000 agents take for an Event about the same outage

	eventTries = 4               // attempts to write one Event
	eventLimit = 5 * time.Second // timeout of one attempt

	// eventLife is how long a repetition updates the count of the last Event. The API server keeps an Event for an hour.
	eventLife = 50 * time.Minute
)

// events writes Events, one at a time. A newer Event replaces one that waits, if both are about the same subject.
type events struct {
	*base

	api   *api
	limit *rate.Limiter
	bad   atomic.Bool // the last configuration was refused
	wake  chan struct{}

	mu      sync.Mutex
	waiting []waitingEvent // at most maxWaiting, the oldest first

	written, failed, dropped atomic.Uint64

	// The following fields belong to run.
	last          *corev1.Event // Event that was written last; empty: none
	failureLogged bool          // the next failure is logged: it is the first since a success
}

// A waitingEvent is an Event that is not written yet.
type waitingEvent struct {
	*corev1.Event

	subject string
	spread  bool // many agents may have it at the same time: wait for a random part of spreadOver
}

func newEvents(b *base, a *api) *events {
	return &events{
		base: b, api: a, wake: make(chan struct{}, 1), last: &corev1.Event{}, failureLogged: true,
		limit: rate.NewLimiter(rate.Every(eventEvery), eventBurst),
	}
}

// refused posts an Event about a refused configuration.
func (e *events) refused(err error) {
	e.bad.Store(true)
	e.post(aboutConfig, corev1.EventTypeWarning, ReasonRefused, summarize("the running configuration stays: ", err), false)
}

// applied posts an Event if keys need a restart, or if the previous configuration was refused.
func (e *events) applied(now *InUse) {
	bad := e.bad.Swap(false)
	switch {
	case len(now.NeedRestart) > 0:
		e.post(aboutConfig, corev1.EventTypeWarning, ReasonRestart, "a restart is needed for "+strings.Join(now.NeedRestart, ", ")+"; all other keys are in use", false)
	case bad:
		e.post(aboutConfig, corev1.EventTypeNormal, ReasonApplied, fmt.Sprintf("configuration applied, generation %d", now.Generation), false)
	}
}

// aboutConfig is the subject of the Events about the configuration.
const aboutConfig = "config"

// Post writes an Event about this process, soon: one about the same subject that still waits is replaced. Without a pod, or an API
// server, there is none.
func (s *Source) Post(subject string, warning bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	s.events.post(subject, kind, reason, strings.ToValidUTF8(remote.Text(message), ""), true)
}

// post adds an Event to those that wait. It is of the core group, which `kubectl describe pod` shows.
func (e *events) post(subject, kind, reason, message string, spread bool) {
	pod, at := e.cfg.Pod, metav1.NewTime(e.cfg.Now())
	if pod.Name == "" || pod.Namespace == "" {
		return
	}
	n := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("%s.%x", pod.Name, at.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(e.cfg.PodUID)},
		Type:           kind, Reason: reason, Message: message,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: "node-cache", Host: e.cfg.Node},
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	drop := slices.IndexFunc(e.waiting, func(w waitingEvent) bool { return w.subject == subject })
	if drop < 0 && len(e.waiting) == maxWaiting {
		drop = 0
	}
	if drop >= 0 {
		e.waiting = slices.Delete(e.waiting, drop, drop+1)
		e.dropped.Add(1)
	}
	e.waiting = append(e.waiting, waitingEvent{n, subject, spread})
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// first returns the Event that has waited longest, and removes it if take is set; its Event is nil if none waits.
func (e *events) first(take bool) (n waitingEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return n
	}
	n = e.waiting[0]
	if take {
		e.waiting = slices.Delete(e.waiting, 0, 1)
	}
	return n
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
	return strings.ToValidUTF8(remote.Text(begin+text), "") // the API allows 1024 bytes
}

// run writes Events until ctx ends.
func (e *events) run(ctx context.Context) error {
	for {
		n := e.first(false)
		if n.Event == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-e.wake:
			}
			continue
		}
		now := e.cfg.Now()
		wait := e.limit.ReserveN(now, 1).DelayFrom(now)
		if n.spread {
			wait += mathrand.N(spreadOver)
		}
		if retry.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		if n = e.first(true); n.Event != nil {
			e.deliver(ctx, n.Event)
		}
	}
}

// deliver writes one Event, with a few attempts.
func (e *events) deliver(ctx context.Context, n *corev1.Event) {
	var p retry.Backoff
	for try := 1; ; try++ {
		err := e.recovering(ctx, "writing an event", func() error { return e.write(ctx, n) })
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
					hint = "grant create and patch of events in namespace " + e.cfg.Pod.Namespace + " to this process"
				}
				e.cfg.Log.WarnContext(ctx, "writing event failed", "reason", n.Reason, "err", err, "hint", hint)
			}
			e.failureLogged = false
			return
		}
		if retry.Sleep(ctx, pauseAfter(&p, err)) != nil {
			return
		}
	}
}

// denied reports whether a further attempt is useless: the API server refused the request for another reason than its rate.
func denied(err error) bool {
	code := statusCode(err)
	return code/100 == 4 && code != http.StatusTooManyRequests
}

// write writes a new Event, or updates the count of the last one.
func (e *events) write(ctx context.Context, n *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	client, err := e.api.open()
	if err != nil {
		return err
	}
	if n.Reason == e.last.Reason && n.Message == e.last.Message && n.FirstTimestamp.Sub(e.last.FirstTimestamp.Time) < eventLife {
		patch := fmt.Sprintf(`{"count": %d, "lastTimestamp": %q}`, e.last.Count+1, n.FirstTimestamp.UTC().Format(time.RFC3339))
		err := client.Patch(types.MergePatchType).Namespace(n.Namespace).Resource("events").Name(e.last.Name).
			MaxRetries(0).Body([]byte(patch)).Do(ctx).Error()
		if err == nil {
			e.last.Count++
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return shortened(err)
		}
	}
	err = client.Post().Namespace(n.Namespace).Resource("events").MaxRetries(0).Body(n).Do(ctx).Error()
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // an earlier attempt wrote it
		return shortened(err)
	}
	e.last = n
	return nil
}
