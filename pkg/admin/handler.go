// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
)

// maxProfile bounds the duration of a profile in seconds.
const maxProfile = 300

// A Page is an entry of the index.
type Page struct {
	Path    string
	Meaning string
	handler http.HandlerFunc
}

// A View is what the page at / shows of the server and of the client.
type View struct {
	Local bool   // the client is on this host
	Watch bool   // there is a page /watch
	Pages []Page // the index
}

// ScriptPath is the path of the script of the page at /.
const ScriptPath = "/page.js"

// pages returns the pages of the index in order.
func (s *Server) pages() []Page {
	list := []Page{
		{"/status", "status of the agent as JSON; /status?format=text as text", s.buffered(func(w http.ResponseWriter, r *http.Request) {
			s.render(w, r, s.cfg.Status())
		})},
		{"/metrics", "counters and gauges, for Prometheus", s.buffered(s.cfg.Metrics.ServeHTTP)},
		{"/readyz", "200 while the agent is ready, else 503 with the reason", outcome(s.cfg.Ready)},
		{"/livez", "200 unless a restart is needed, else 503 with the reason", outcome(s.cfg.Live)},
		{"/debug/pprof/", "profiles for go tool pprof, only for clients on this host", s.profile(pprof.Index)},
	}
	if s.cfg.Checks != nil {
		list = append(list, Page{
			"/healthcheck/", "results of the configured probes; /healthcheck/LABEL: 200 while that probe succeeds, else 503 with the reason", s.checks,
		})
	}
	if s.cfg.Top != nil {
		list = append(list, Page{
			"/top", "queries of the pods of the node, with pods.identity; /top?by=name: also of names; only for clients on this host",
			s.cachePage(func(given url.Values) (any, error) { return s.cfg.Top(given.Get("by")) }, "by"),
		})
	}
	if s.cfg.Watch != nil {
		list = append(list, Page{
			"/watch", "queries as they come; only for clients on this host", localOnly(watchPage(s.cfg.Watch)),
		})
	}
	if s.cfg.Kernel != nil {
		list = append(list, Page{
			"/kernel", "hits answered in the kernel; POST /kernel?hits=off and on; only for clients on this host",
			s.cachePage(func(url.Values) (any, error) { return s.cfg.Kernel.Status(), nil }),
		})
	}
	if s.cfg.Cache != nil {
		list = append(list, Page{
			"/cache/top", "cache entries with the most hits; also /cache/get?name=NAME and POST /cache/flush; only for clients on this host",
			s.cachePage(s.cacheTop, "n", "by"),
		})
	}
	return list
}

// Handler serves all pages without the connection limits.
//
// /status is JSON. It is text with ?format=text, or if the Accept header names text/plain before
// application/json.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	pages := s.pages()
	for _, p := range pages {
		mux.HandleFunc("GET "+exact(p.Path), p.handler)
	}
	if s.cfg.Checks != nil {
		mux.HandleFunc("GET /healthcheck/{label}", s.check)
	}
	if s.cfg.Front != nil {
		// One request at a time of each kind of client: browsers that poll leave the other pages to scrapers.
		turns := map[bool]chan struct{}{true: make(chan struct{}, 1), false: make(chan struct{}, 1)}
		front := func(w http.ResponseWriter, r *http.Request) {
			local := checkLocal(r) == nil
			s.inTurn(turns[local], func(w http.ResponseWriter, r *http.Request) {
				s.cfg.Front(w, r, View{Local: local, Watch: s.cfg.Watch != nil, Pages: pages})
			})(w, r)
		}
		mux.HandleFunc("GET /{$}", front)
		mux.HandleFunc("GET "+ScriptPath, front)
	}
	if s.cfg.Kernel != nil {
		mux.HandleFunc("POST /kernel", s.cachePage(s.cfg.Kernel.post, "hits"))
	}
	if s.cfg.Cache != nil {
		mux.HandleFunc("GET /cache/get", s.cachePage(s.cacheGet, "name", "type"))
		mux.HandleFunc("POST /cache/flush", s.cachePage(s.cacheFlush, "name", "zone", "all"))
	}
	mux.HandleFunc("GET /debug/pprof/cmdline", s.profile(pprof.Cmdline))
	mux.HandleFunc("GET /debug/pprof/profile", s.profile(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", s.profile(pprof.Symbol))
	mux.HandleFunc("GET /debug/pprof/trace", s.profile(pprof.Trace))
	return s.guard(mux)
}

// exact returns the pattern of a page. Paths below /debug/pprof/ match it, too.
func exact(path string) string {
	if path == "/healthcheck/" {
		return path + "{$}"
	}
	return path
}

// guard rejects invalid requests and limits a panic to its own request.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w := &watchedWriter{ResponseWriter: out}
		defer func() {
			if defect := recover(); defect != nil {
				s.recovered(w, r, defect)
			}
		}()
		if !s.requestThrottle.wait(r) {
			busy(w)
			return
		}
		s.requestThrottle.took(requestCost)
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		switch {
		case r.ContentLength != 0: // -1 is a body of unknown length
			h.Set("Connection", "close") // leaves the body unread
			http.Error(w, "request bodies are not accepted", http.StatusRequestEntityTooLarge)
		case tooLong(r):
			http.Error(w, fmt.Sprintf("seconds: at most %d", maxProfile), http.StatusBadRequest)
		case !s.isKnownHost(r):
			http.Error(w, errHost.Error(), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// tooLong reports whether a request asks for a profile longer than maxProfile.
func tooLong(r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
		return false
	}
	seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
	return errors.Is(err, strconv.ErrRange) || err == nil && !(seconds <= maxProfile) // NaN is invalid, too
}

// recovered counts and logs a panic. The client gets a 500, or a broken connection if part of the reply may
// be sent already.
func (s *Server) recovered(w *watchedWriter, r *http.Request, defect any) {
	if err, ok := defect.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(defect) // the way of a handler to break the connection
	}
	s.panics.Add(1)
	s.cfg.Log.ErrorContext(r.Context(), "recovered from a panic", "where", "admin", "path", r.URL.Path,
		"panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler)
	}
	w.Header().Del("Content-Encoding") // of the abandoned reply
	http.Error(w, "internal error, see the log", http.StatusInternalServerError)
}

// A watchedWriter records whether the reply has begun.
type watchedWriter struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements [http.ResponseWriter].
func (w *watchedWriter) WriteHeader(code int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (w *watchedWriter) Write(p []byte) (int, error) {
	w.begun = true
	return w.ResponseWriter.Write(p)
}

// Unwrap allows [http.ResponseController] to move the write deadline, as profiles need.
func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
