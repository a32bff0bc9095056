// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	openTimeout = 10 * time.Second // for a watch to be answered; the server itself waits up to 3 s for its cache
	listTimeout = 60 * time.Second // for all of one page
	maxDelay    = 30 * time.Second // that a server may ask for
)

// A query says which objects a feed wants.
type query struct {
	client    rest.Interface
	resource  string
	namespace string // empty: all, or the kind has none
	only      string // name of the one object; empty: all
	labels    string // selector
	fields    string // selector
	example   runtime.Object
}

// covers says whether an object is one of those that the query lists.
func (q *query) covers(namespace, name string) bool {
	return (q.namespace == "" || q.namespace == namespace) && (q.only == "" || q.only == name)
}

// request makes the request with opts and the query's selectors.
func (q *query) request(opts metav1.ListOptions) *rest.Request {
	opts.LabelSelector, opts.FieldSelector = q.labels, q.fields
	if q.only != "" {
		opts.FieldSelector = "metadata.name=" + q.only
	}
	return q.client.Get().
		Namespace(q.namespace).
		Resource(q.resource).
		VersionedParams(&opts, metav1.ParameterCodec).
		MaxRetries(0) // each request is to pass the limiter
}

// open begins a watch for the reflector: one with a first list, or one that goes on.
func (f *feed) open(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
	first := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if err := f.admit(ctx); err != nil {
		return nil, err
	}
	age, _ := f.view.age(f.part, f.now())
	if !first && f.proofless >= 2 && age > f.pace.limit {
		// Something between here and there passes watches without bookmarks. A list proves as much.
		f.proofless = 0
		err := apierrors.NewResourceExpired(errNoProof.Error())
		f.failed(ctx, errNoProof)
		return nil, err
	}
	p := f.pace.forFirst()
	if !first {
		length := f.pace.length(age)
		p = f.pace.forNext(age, length)
		if length > 0 {
			seconds := int64(length / time.Second)
			opts.TimeoutSeconds = &seconds
		}
	}
	opts.Watch = true
	opts.ResourceVersion = f.notOlder(opts.ResourceVersion)
	w, cancel, err := f.dial(ctx, opts)
	if first {
		f.noteFirst(err)
	}
	if err != nil {
		f.failed(ctx, err)
		f.obey(err)
		return nil, err
	}
	if f.watched {
		f.view.restarts.Add(1)
	}
	f.watched = true
	f.stream = newStream(ctx, f, w, cancel, first, p)
	return f.stream, nil
}

// dial sends the request and waits for the answer's head, not longer than openTimeout. The caller calls cancel
// when it is done with the watch.
func (f *feed) dial(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(openTimeout, cancel)
	w, err := f.query.request(opts).Watch(ctx)
	if !late.Stop() {
		if err == nil {
			w.Stop()
		}
		f.lines.closeSilent(f.now().Add(-openTimeout / 2))
		err = errNoAnswer
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return w, cancel, nil
}

// noteFirst keeps how a watch with a first list began. If it began well it is a failure nevertheless until its list
// is complete.
func (f *feed) noteFirst(err error) {
	f.failures++
	if err == nil {
		err = errCut
	}
	f.listError = err
}

// list asks for a plain list. The reflector does so whenever a watch with a first list fails, whatever the reason; it is
// spared where it cannot help.
func (f *feed) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.Continue == "" {
		if f.listError != nil && !listMayHelp(f.listError, f.failures) {
			return nil, f.listError
		}
		if err := f.admit(ctx); err != nil {
			return nil, err
		}
		f.listAsked = f.now()
		opts.ResourceVersion = f.notOlder(opts.ResourceVersion)
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	obj, err := f.query.request(opts).Do(limited).Get()
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			f.hangUp()
			err = errNoAnswer
		}
		f.failed(ctx, err)
		f.obey(err)
		return nil, err
	}
	return obj, nil
}

// notOlder gives the resource version to ask for where the reflector wants one: none older than what was seen. It does not
// know of the objects of a first list that broke off, which the zone has. "0", any state at all, becomes "", the
// newest, for the same reason.
func (f *feed) notOlder(wanted string) string {
	if wanted == "" || wanted == "0" {
		return ""
	}
	if version, err := strconv.ParseUint(wanted, 10, 64); err == nil && version < f.highest.Load() {
		return strconv.FormatUint(f.highest.Load(), 10)
	}
	return wanted
}

// admit waits until one more request may be sent.
func (f *feed) admit(ctx context.Context) error {
	if err := f.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to ask for %s: %w", f.query.resource, err)
	}
	if wait := f.notBefore.Sub(f.now()); wait > 0 && !sleep(ctx, wait) {
		return ctx.Err()
	}
	return nil
}

// obey keeps the pause that the server asked for.
func (f *feed) obey(err error) {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		f.notBefore = f.now().Add(min(time.Duration(seconds)*time.Second, maxDelay))
	}
}
