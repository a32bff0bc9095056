// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// The pauses between attempts double from firstPause to lastPause, each with up to half of it added. The last is short on
	// purpose: after an outage of minutes, changes flow again within 8 s. It costs 5,000 agents with three kinds
	// 2,400 attempts a second in all, which a server that is down does not see and one that is up sees once.
	firstPause  = 800 * time.Millisecond
	lastPause   = 5 * time.Second
	pauseJitter = 0.5

	// refusedPause is the pause after the server has said no. It may be granted any time, but rarely is.
	refusedPause = 30 * time.Second

	// requestsPerSecond of one resource from this process, after a burst of one and one more for each feed of it: an old
	// server is asked twice at the start. The pages of one list count as one.
	requestsPerSecond = 1
	requestBurst      = 1
)

// A feed brings the objects of one kind, of one namespace or all, to a target.
type feed struct {
	query      query
	target     target
	status     *kindStatus
	feedStatus *feedStatus
	limiter    *rate.Limiter // shared by the feeds of one resource
	timing     confirmTiming
	maxList    int64 // bytes
	conns      *connTracker
	panics     *atomic.Uint64
	onSynced   func() // told once: the first list is complete, or the server forbids it
	log        *slog.Logger
	now        func() time.Time

	// highest is the newest resource version that was seen in any object or bookmark. It is what keeps the view from going back
	// when another server, whose cache is behind, answers next.
	highest atomic.Uint64

	// upTo is the resource version up to which all is known.
	upTo atomic.Uint64

	// The rest belongs to the reflector's goroutine, and to its stream while there is one.
	stream         *stream
	restarted      bool      // a watch was begun before
	listAsked      time.Time // when the last plain list was asked for
	listLeft       int64     // bytes that the rest of that list may have
	listPages      int       // that it had so far
	listError      error     // of the last watch with a first list
	failures       int       // of such watches, in a row
	unconfirmed    int       // short watches that ended without proof, in a row
	behind         bool      // the server is known to have a newer version
	rolledBack     bool      // the server has come to an older version than was heard from it
	lastUnreadable bool      // the last thing in the last watch could not be read
	notBefore      time.Time // the server asked for a pause until then
}

// run feeds the target until ctx ends.
func (f *feed) run(ctx context.Context) {
	logger := logr.FromSlogHandler(debugHandler{f.log.Handler()})
	ctx = klog.NewContext(ctx, logger)
	backoff := wait.Backoff{Duration: firstPause, Factor: 2, Jitter: pauseJitter, Cap: lastPause, Steps: 10}
	lw := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.openWatch}
	r := cache.NewReflectorWithOptions(lw, f.query.example, sink{f}, cache.ReflectorOptions{
		Logger:          &logger,
		Name:            f.query.resource,
		TypeDescription: f.query.resource,
		Backoff:         &backoff,
		Clock:           cancelableClock{done: ctx.Done()},
	})
	pause := backoff.DelayFunc()
	for {
		began := f.now()
		err := f.attempt(ctx, r)
		if f.now().Sub(began) > lastPause {
			pause = backoff.DelayFunc() // that was pause enough
		}
		rest := pause()
		if reason := reasonOf(err); err != nil && (reason == reasonForbidden || reason == reasonUnauthorized) {
			rest = jittered(refusedPause)
		}
		if !sleep(ctx, rest) {
			return
		}
	}
}

// attempt lists and watches until something is amiss. What that was is noted already, where it happened.
func (f *feed) attempt(ctx context.Context, r *cache.Reflector) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = f.panicked(ctx, p)
		}
	}()
	return r.ListAndWatchWithContext(ctx)
}

// panicked notes a panic that was recovered.
func (f *feed) panicked(ctx context.Context, p any) error {
	f.panics.Add(1)
	f.log.ErrorContext(ctx, "panic in a watch", "resource", f.query.resource, "panic", p, "stack", string(debug.Stack()))
	f.failed(ctx, errPanic)
	return errPanic
}

// failed notes an error, and logs it if it is news.
func (f *feed) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // it is the end of this process's interest
	}
	reason := reasonOf(err)
	news := f.status.failed(f.feedStatus, reason, fmt.Sprintf("%s: %v", reason, err))
	if reason == reasonForbidden && f.status.refused(f.feedStatus) {
		f.onSynced()
	}
	if news {
		level := slog.LevelWarn
		if reason == reasonExpired {
			level = slog.LevelDebug // it is what happens when a server starts anew
		}
		f.log.Log(ctx, level, "watch failed", "resource", f.query.resource, "namespace", f.query.namespace, "reason", reason, "err", err)
	}
}

// proven notes that the view was right at that time.
func (f *feed) confirmed(ctx context.Context, at time.Time) {
	settled, healed := f.status.confirmed(f.feedStatus, at)
	if settled {
		f.onSynced()
	}
	if healed {
		f.log.InfoContext(ctx, "watch works again", "resource", f.query.resource, "namespace", f.query.namespace)
	}
}

// streamEnded notes how a watch ended.
func (f *feed) streamEnded(short, proved bool) {
	switch {
	case proved:
		f.unconfirmed = 0
	case short:
		f.unconfirmed++
	}
}

// unreadable says whether err is one of reading a watch, and none came right before it. Such a watch goes on from the last
// event, in the next one: a connection that broke in the middle of an event has lost nothing. What cannot be read a second time
// is left to a new list.
func (f *feed) unreadable(err error) bool {
	again := f.lastUnreadable
	f.lastUnreadable = apierrors.HasStatusCause(err, causeUnreadable)
	return f.lastUnreadable && !again
}

// hangUp closes the connections that may be to blame for a silent watch.
func (f *feed) closeSilentConns() {
	f.conns.closeSilentSince(f.now().Add(-f.timing.timeout))
}

// see keeps the highest resource version.
func (f *feed) noteVersion(resourceVersion string) (version uint64, ok bool) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, false
	}
	if version > f.highest.Load() {
		f.highest.Store(version)
	}
	return version, true
}

// knows says whether obj is of the feed's kind.
func (f *feed) ofKind(obj runtime.Object) bool {
	return reflect.TypeOf(obj) == reflect.TypeOf(f.query.example)
}
