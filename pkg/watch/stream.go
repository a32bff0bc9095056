// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodecache/node-cache/pkg/remote"
)

// A stream is a watch with timeouts that records when each event arrived.
type stream struct {
	feed   *feed
	inner  apiwatch.Interface
	cancel context.CancelFunc
	short  bool                // requested with a short timeout
	out    chan apiwatch.Event // events for the reflector
	quit   chan struct{}
	stop   func()        // closes quit, once
	done   chan struct{} // closed once pump has ended

	// Once the stream has started, only pump's goroutine uses the following fields.
	listing       bool // the first list is not complete
	failed        bool // an event of type Error, always the last one, has arrived
	caughtUp      bool // after a first list or a bookmark: every further event is new
	timer         *time.Timer
	confirmResult chan bool // receives whether the state was confirmed; nil: no request is running

	arrivals chan arrival // arrivals of the events passed to the reflector, in order
	listedAt time.Time    // when the end of the first list came; read it only after receiving that event
}

// An arrival is the time of an event, and whether the event confirms the state as of then.
type arrival struct {
	at       time.Time
	confirms bool
}

// start passes on the events of inner until the stream is stopped or abandoned. cancel ends inner's request. patience is
// the timeout for the first event.
func (s *stream) start(ctx context.Context, inner apiwatch.Interface, cancel context.CancelFunc, patience time.Duration) {
	s.inner, s.cancel = inner, cancel
	s.out = make(chan apiwatch.Event)
	s.quit = make(chan struct{})
	s.stop = sync.OnceFunc(func() { close(s.quit) })
	s.done = make(chan struct{})
	s.arrivals = make(chan arrival, 2) // for the event that the reflector handles, and the next one
	s.timer = time.NewTimer(patience)
	go s.pump(ctx)
}

// ResultChan implements [apiwatch.Interface].
func (s *stream) ResultChan() <-chan apiwatch.Event { return s.out }

// Stop implements [apiwatch.Interface]. It waits for the goroutine.
func (s *stream) Stop() {
	s.stop()
	<-s.done
}

// pump passes the events of the server to the reflector.
func (s *stream) pump(ctx context.Context) {
	defer close(s.done)
	defer close(s.out)
	defer s.end()
	defer func() {
		if p := recover(); p != nil {
			s.feed.failed(ctx, s.feed.guard.Recovered(ctx, p)) // the end of the stream makes the reflector start another
		}
	}()
	for {
		ev, ok := s.next(ctx)
		if ev.Type == apiwatch.Error {
			ev.Object = shortStatus(ev.Object)
		}
		if !ok || !s.noteEvent(ctx, ev) {
			return
		}
		select {
		case s.out <- ev:
		case <-s.quit:
			return
		}
	}
}

// end ends the request and waits for its goroutines.
func (s *stream) end() {
	s.timer.Stop()
	s.inner.Stop()
	s.cancel()
	if s.confirmResult != nil {
		<-s.confirmResult
	}
	s.feed.streamEnded(s.short, s.caughtUp)
}

// next waits for an event. It reports false at the end.
func (s *stream) next(ctx context.Context) (ev apiwatch.Event, ok bool) {
	for {
		select {
		case ev, ok = <-s.inner.ResultChan():
			if !ok && s.listing && !s.failed { // an event of type Error was recorded when it arrived
				s.feed.failed(ctx, errListEnded)
			}
			return ev, ok
		case <-s.quit:
			return ev, false
		case proven := <-s.confirmResult:
			s.confirmResult = nil
			if !proven {
				return ev, false // the reflector resumes with a watch that confirms the state
			}
			s.timer.Reset(s.feed.confirmAfter)
		case <-s.timer.C:
			switch {
			case s.listing:
				return s.stalled()
			case s.short:
				s.feed.closeSilentConns()
				s.feed.failed(ctx, errSilent)
				return ev, false
			case s.confirmResult == nil:
				s.startConfirm(ctx)
			}
		}
	}
}

// startConfirm starts the confirmation in parallel with the watch.
func (s *stream) startConfirm(ctx context.Context) {
	asked := make(chan bool, 1)
	s.confirmResult = asked
	go func() {
		proven, err := s.feed.confirm(ctx)
		asked <- proven && err == nil
	}()
}

// stalled returns the event that follows a pause in the first list that was too long: an error, unless an event has arrived by now.
func (s *stream) stalled() (ev apiwatch.Event, ok bool) {
	select {
	case ev, ok = <-s.inner.ResultChan(): // the event was there; only this process was slow
		return ev, ok
	default:
	}
	s.feed.closeSilentConns()
	// An ended stream makes the reflector repeat the request at once. An error makes it wait.
	status := metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("the first list paused for %s", maxListPause),
	}
	return apiwatch.Event{Type: apiwatch.Error, Object: &status}, true
}

// EventError returns the error of a watch's event of type Error. Its text is short.
func EventError(obj runtime.Object) error { return apierrors.FromObject(shortStatus(obj)) }

// maxCauses bounds the causes of a Status. Client-go's own errors have one.
const maxCauses = 8

// shortStatus returns a bounded copy of the Status in an event of type Error, with the fields that this process uses. These stay
// in memory, and a server may send a Status as long as any event.
func shortStatus(obj runtime.Object) *metav1.Status {
	long, ok := obj.(*metav1.Status)
	if !ok {
		return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnknown, Message: "the server sent an error without a status"}
	}
	short := &metav1.Status{
		Status: remote.Text(long.Status), Code: long.Code, Reason: metav1.StatusReason(remote.Text(string(long.Reason))), Message: remote.Text(long.Message),
	}
	if long.Details == nil {
		return short
	}
	short.Details = &metav1.StatusDetails{RetryAfterSeconds: long.Details.RetryAfterSeconds}
	for _, c := range long.Details.Causes[:min(len(long.Details.Causes), maxCauses)] {
		short.Details.Causes = append(short.Details.Causes, metav1.StatusCause{Type: metav1.CauseType(remote.Text(string(c.Type))), Message: remote.Text(c.Message)})
	}
	return short
}

// noteEvent records an event before it is passed on. It reports false for an event that ends the stream instead.
func (s *stream) noteEvent(ctx context.Context, ev apiwatch.Event) bool {
	at := s.feed.now()
	switch {
	case ev.Type == apiwatch.Error:
		err := apierrors.FromObject(ev.Object)
		s.feed.failed(ctx, err)
		s.failed = true
		if !s.listing {
			return !s.feed.unreadable(err)
		}
		s.feed.listError = err
	case s.listing && isListEnd(ev):
		s.listing, s.caughtUp, s.listedAt = false, true, at
		s.timer.Reset(s.feed.confirmAfter)
	case s.listing:
		s.timer.Reset(maxListPause)
	default:
		s.noteNews(ev, at)
	}
	return true
}

// noteNews records an event after the first list.
func (s *stream) noteNews(ev apiwatch.Event, at time.Time) {
	s.feed.lastUnreadable = false
	if ev.Type == apiwatch.Bookmark {
		s.caughtUp = true
	}
	if s.caughtUp && !s.short {
		s.timer.Reset(s.feed.confirmAfter)
	}
	if reflect.TypeOf(ev.Object) != reflect.TypeOf(s.feed.query.example) {
		return // not of the kind: the reflector drops it
	}
	select {
	case s.arrivals <- arrival{at: at, confirms: s.caughtUp}:
	default: // the channel is full: for event types that it does not know, the reflector takes no arrival
	}
}

// isListEnd reports whether ev is the bookmark after a first list.
func isListEnd(ev apiwatch.Event) bool {
	if ev.Type != apiwatch.Bookmark {
		return false
	}
	m, err := meta.Accessor(ev.Object)
	return err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
