// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
)

const (
	watchRate   = 1000 // queries a second that one watcher gets
	watchBuffer = 256  // queries that wait for a slow reader
)

// WatchPage returns the handler of /watch: the lines of a query log with the queries that the parameters select, and how to
// end it. A line {"dropped":N} precedes the first query after N that came too fast. current returns the pods in use; nil:
// they are not known. options format the lines.
func WatchPage(watchers *resolve.Watchers, current func() *pods.Index, options *slog.HandlerOptions) func(url.Values) (lines <-chan []byte, end func(), err error) {
	return func(given url.Values) (<-chan []byte, func(), error) {
		w := &watcher{lines: make(chan []byte, watchBuffer), limit: rate.NewLimiter(watchRate, watchRate/10)}
		filter, err := watchFilter(given)
		if err != nil {
			return nil, nil, err
		}
		if (filter.Namespace != "" || filter.Pod != "") && current() == nil {
			return nil, nil, errNoPods
		}
		filter.Admit = w.admit
		remove, ok := watchers.Add(&resolve.QueryLog{
			Log: slog.New(slog.NewJSONHandler(w, options)), All: true, Filter: filter, TypeName: TypeName,
		})
		if !ok {
			return nil, nil, errors.New("eight others watch the queries already\nhint: end one of them")
		}
		return w.lines, remove, nil
	}
}

// TypeName returns the name of a query type.
func TypeName(t uint16) string { return dns.Type(t).String() }

// watchFilter returns the filter that the parameters describe.
func watchFilter(given url.Values) (*resolve.Filter, error) {
	f := &resolve.Filter{Namespace: given.Get("namespace"), Rcode: strings.ToUpper(given.Get("rcode")), Source: given.Get("source")}
	var wrong []error
	if pod := given.Get("pod"); pod != "" {
		var ok bool
		if f.Namespace, f.Pod, ok = strings.Cut(pod, "/"); !ok || given.Has("namespace") {
			wrong = append(wrong, fmt.Errorf("pod %q: not NAMESPACE/POD, or a namespace is given too", pod))
		}
	}
	if f.Rcode != "" && !slices.Contains(resolve.Rcodes(), f.Rcode) {
		wrong = append(wrong, fmt.Errorf("rcode %q: not one of %s", f.Rcode, strings.Join(resolve.Rcodes(), ", ")))
	}
	if f.Source != "" && !slices.Contains(resolve.Sources(), f.Source) {
		wrong = append(wrong, fmt.Errorf("source %q: not one of %s", f.Source, strings.Join(resolve.Sources(), ", ")))
	}
	if name := given.Get("name"); name != "" {
		var err error
		if f.Domain, err = parseName(name); err != nil {
			wrong = append(wrong, fmt.Errorf("name %w", err))
		}
	}
	return f, errors.Join(wrong...)
}

// A watcher passes on the lines of a query log, and drops those that come too fast.
type watcher struct {
	lines   chan []byte
	limit   *rate.Limiter
	dropped atomic.Uint64
}

func (w *watcher) admit() bool {
	if len(w.lines) < cap(w.lines)-1 && w.limit.Allow() {
		return true
	}
	w.dropped.Add(1)
	return false
}

// Write implements [io.Writer] for one line. The handler calls it for one line at a time.
func (w *watcher) Write(line []byte) (int, error) {
	if n := w.dropped.Swap(0); n > 0 {
		w.send(fmt.Appendf(nil, "{\"dropped\":%d}\n", n))
	}
	w.send(bytes.Clone(line))
	return len(line), nil
}

func (w *watcher) send(line []byte) {
	select {
	case w.lines <- line:
	default:
		w.dropped.Add(1)
	}
}
