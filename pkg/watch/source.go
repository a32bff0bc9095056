// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	openTimeout = 10 * time.Second // timeout for the response header of a watch; the server itself waits up to 3 s for its cache
	listTimeout = 60 * time.Second // timeout for one page of a list
	maxDelay    = 30 * time.Second // the longest delay that a server may request

	// minWatchTime is the minimum length of a watch: if a watch ends within a second and without events, the reflector lists again.
	minWatchTime = 1500 * time.Millisecond
)

// A query selects the objects of a feed.
type query struct {
	client    rest.Interface
	versions  []rest.Interface // clients of the possible API versions, of which the server may have none; nil: only that of client
	resource  string
	namespace string // empty: all namespaces, or a cluster-scoped kind
	only      string // name of the only object to get; empty: all
	labels    string // label selector; empty: all objects
	fields    string // field selector; empty: all objects
	example   runtime.Object
}

// covers reports whether the query selects the object.
func (q *query) covers(namespace, name string) bool {
	return (q.namespace == "" || q.namespace == namespace) && (q.only == "" || q.only == name)
}

// listOne requests one object at the newest version. It omits the selectors: if they match nothing, the server searches all objects.
func (q *query) listOne(ctx context.Context) (runtime.Object, error) {
	opts := metav1.ListOptions{Limit: 1}
	all := *q
	all.labels, all.fields = "", ""
	return all.request(opts).Do(ctx).Get()
}

// request builds the request with opts and the query's selectors.
func (q *query) request(opts metav1.ListOptions) *rest.Request {
	opts.LabelSelector, opts.FieldSelector = q.labels, q.fields
	if q.only != "" {
		opts.FieldSelector = "metadata.name=" + q.only
	}
	return q.client.Get().
		Namespace(q.namespace).
		Resource(q.resource).
		VersionedParams(&opts, metav1.ParameterCodec).
		MaxRetries(0) // each request must pass the limiter
}

// openWatch opens a watch for the reflector: one that begins with a list, or one that resumes.
func (f *feed) openWatch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
	if f.isAbsent() {
		if err := f.findVersion(ctx); err != nil {
			return nil, err
		}
	}
	st := &stream{feed: f}
	patience := maxListPause
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		st.listing = true
	} else {
		var err error
		if st.short, patience, err = f.planWatch(ctx); err != nil {
			return nil, asConnRefused(err)
		}
	}
	if st.short {
		seconds := int64(shortWatch / time.Second)
		opts.TimeoutSeconds = &seconds
	}
	opts.Watch = true
	opts.ResourceVersion = f.minVersion(opts.ResourceVersion)
	if err := f.waitForLimit(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := f.sendWatch(ctx, cancel, opts)
	if st.listing {
		f.noteFirstList(err)
	}
	if err != nil {
		cancel()
		if !st.listing {
			err = asConnRefused(err)
		}
		return nil, err
	}
	f.begun()
	f.stream = st
	st.start(ctx, w, cancel, patience)
	return st, nil
}

// begun counts a restart for each watch after the first.
func (f *feed) begun() {
	if f.restarted {
		f.status.restarts.Add(1)
	}
	f.restarted = true
}

// planWatch decides whether a resuming watch is short, and how long it may be silent. It may request a confirmation of the state
// first. If a new list is needed, it returns the error that makes the reflector list.
func (f *feed) planWatch(ctx context.Context) (short bool, patience time.Duration, err error) {
	age, _ := f.status.age(f.feedStatus, f.now())
	if left := f.confirmAfter - age; left > minWatchTime {
		return false, left, nil
	}
	if !f.behind {
		proven, err := f.confirm(ctx)
		switch {
		case err != nil:
			return false, 0, err
		case proven:
			return false, f.confirmAfter, nil
		}
	}
	f.behind = false
	if f.rolledBack || f.unconfirmed >= 2 {
		// The watch resumes in a lost history, or something on the path drops bookmarks. A new list helps with both.
		f.rolledBack, f.unconfirmed = false, 0
		f.failed(ctx, errUnconfirmed)
		return false, 0, apierrors.NewResourceExpired(errUnconfirmed.Error())
	}
	return true, shortWatch + watchEndGrace, nil
}

// sendWatch sends the request and waits for the response header for at most openTimeout.
func (f *feed) sendWatch(ctx context.Context, cancel context.CancelFunc, opts metav1.ListOptions) (apiwatch.Interface, error) {
	late := time.AfterFunc(openTimeout, cancel)
	w, err := f.query.request(opts).Watch(ctx)
	if !late.Stop() {
		if err == nil {
			w.Stop()
		}
		err = errNoAnswer
	}
	if err != nil {
		return nil, f.noteFailure(ctx, err)
	}
	f.missing = 0
	return w, nil
}

// confirm requests the newest resource version, and reports whether every change up to it was received.
func (f *feed) confirm(ctx context.Context) (proven bool, err error) {
	if err := f.waitForLimit(ctx); err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, f.confirmTimeout)
	defer cancel()
	at, before := f.now(), f.feedStatus.upTo.Load()
	obj, err := f.query.listOne(limited)
	if err != nil {
		return false, f.noteFailure(ctx, err)
	}
	list, err := meta.ListAccessor(obj)
	if err != nil {
		return false, f.noteFailure(ctx, err)
	}
	version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	switch {
	case err != nil || version < before:
		f.behind, f.rolledBack = true, true
	case version <= f.feedStatus.upTo.Load(): // events of the watch may have raised upTo since the request
		f.confirmed(ctx, at)
		return true, nil
	default:
		f.behind = true
	}
	return false, nil
}

// noteFailure records a failed request, and returns the error for the reflector.
func (f *feed) noteFailure(ctx context.Context, err error) error {
	if f.query.versions != nil && apierrors.IsNotFound(err) {
		f.nextVersion(ctx)
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errNoAnswer
	}
	if errors.Is(err, errNoAnswer) {
		f.closeSilentConns()
	}
	f.failed(ctx, err)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		f.notBefore = f.now().Add(time.Duration(min(seconds, int(maxDelay/time.Second))) * time.Second)
	}
	return err
}

// asConnRefused returns the error that makes the reflector retry and resume. It does so only for a refused connection;
// after any other network error it lists again, which is not needed here.
func asConnRefused(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w (as %w)", err, syscall.ECONNREFUSED)
}

// noteFirstList records how a watch with a first list began. Until its list is complete, it counts as a failure.
func (f *feed) noteFirstList(err error) {
	f.failures++
	if err == nil {
		err = errListEnded
	}
	f.listError = err
}

// list requests a plain list. The reflector does so whenever a watch with a first list fails, for any reason. The request
// is not sent if it cannot help.
func (f *feed) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.Continue == "" {
		if f.listError != nil && (f.isAbsent() || !listMayHelp(f.listError, f.failures)) {
			return nil, f.listError
		}
		if err := f.waitForLimit(ctx); err != nil {
			return nil, err
		}
		f.listAsked, f.listLeft, f.listPages = f.now(), f.maxList, 0
		opts.ResourceVersion = f.minVersion(opts.ResourceVersion)
	}
	limited, cancel := context.WithTimeout(context.WithValue(ctx, listBudget{}, &f.listLeft), listTimeout)
	defer cancel()
	obj, err := f.query.request(opts).Do(limited).Get()
	if f.listPages++; err == nil && f.listPages > maxPages {
		err = errLongList
	}
	if err != nil {
		return nil, f.noteFailure(ctx, err)
	}
	f.missing = 0
	return obj, nil
}

// minVersion returns the resource version to request in place of wanted, so that no answer is older than what was received: the
// reflector's own version ignores the objects of a first list that ended early, but the zone has them. So "0" (any state) becomes "" (the
// newest state).
func (f *feed) minVersion(wanted string) string {
	if wanted == "" || wanted == "0" {
		return ""
	}
	if version, err := strconv.ParseUint(wanted, 10, 64); err == nil && version < f.highest.Load() {
		return strconv.FormatUint(f.highest.Load(), 10)
	}
	return wanted
}

// waitForLimit waits until the rate limit, and a pause that the server requested, allow one more request.
func (f *feed) waitForLimit(ctx context.Context) error {
	if err := f.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("waiting for the request limit of %s: %w", f.query.resource, err)
	}
	if wait := f.notBefore.Sub(f.now()); wait > 0 {
		return retry.Sleep(ctx, wait)
	}
	return nil
}
