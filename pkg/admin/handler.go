// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"
	"strings"

	"github.com/nodecache/node-cache/pkg/panics"
)

// maxProfile bounds the duration of a profile in seconds.
const maxProfile = 300

// A Page is an entry of the index.
type Page struct {
	Path    string
	Meaning string
	Private bool // the page needs the token
	to      audience
	handler http.HandlerFunc
}

// A View is what the server passes to the page at / for one client.
type View struct {
	Token string // empty: the client may not see pods and queries
	Watch bool   // there is a page /watch
	Pages []Page // the index
}

// ScriptPath is the path of the script of the page at /.
const ScriptPath = "/page.js"

// pages returns the pages of the index in order.
func (s *Server) pages() []Page {
	var list []Page
	add := func(path, meaning string, to audience, handler http.HandlerFunc) {
		list = append(list, Page{path, meaning, to == withToken || to == general && s.access.secure, to, handler})
	}
	add("/status", "status of the agent as JSON; /status?format=text as text", general, s.buffered(func(w http.ResponseWriter, r *http.Request) {
		s.render(w, r, s.cfg.Status(s.access.seesQueries(r)))
	}))
	add("/metrics", "counters and gauges, for Prometheus", general, s.buffered(s.cfg.Metrics.ServeHTTP))
	add("/readyz", "200 while the agent is ready, else 503 with the reason", open, outcome(s.cfg.Ready))
	add("/livez", "200 unless a restart is needed, else 503 with the reason", open, outcome(s.cfg.Live))
	if s.cfg.Checks != nil {
		add("/healthcheck/", "results of the configured probes; /healthcheck/LABEL: 200 while that probe succeeds, else 503 with the reason", open, s.checks)
	}
	if s.cfg.Top != nil {
		add("/top", "queries of the pods of the node, with pods.identity; /top?by=name: also of names; /top?by=recent: of the last ten minutes", withToken,
			s.cachePage(func(given url.Values) (any, error) { return s.cfg.Top(given.Get("by")) }, "by"))
	}
	if s.cfg.Watch != nil {
		add("/watch", "queries as they come", withToken, watchPage(s.cfg.Watch))
	}
	if s.cfg.Cache != nil {
		add("/cache/top", "cache entries with the most hits; also /cache/get?name=NAME", withToken, s.cachePage(s.cacheTop, "n", "by"))
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
	handle := func(a audience, pattern string, page http.HandlerFunc) {
		mux.HandleFunc(pattern, s.access.allow(a, page))
	}
	for _, p := range pages {
		pattern := "GET " + p.Path
		if strings.HasSuffix(pattern, "/") {
			pattern += "{$}"
		}
		handle(p.to, pattern, p.handler)
	}
	if s.cfg.Checks != nil {
		handle(open, "GET /healthcheck/{label}", s.check)
	}
	if s.cfg.Front != nil {
		// One request at a time for clients with the token, and one for others: so browsers that poll the page use few of maxPages.
		turns := map[string]chan struct{}{s.access.token: make(chan struct{}, 1), "": make(chan struct{}, 1)}
		front := func(w http.ResponseWriter, r *http.Request) {
			v := View{Watch: s.cfg.Watch != nil, Pages: pages}
			if s.access.seesQueries(r) {
				v.Token = s.access.token
			}
			s.inTurn(turns[v.Token], func(w http.ResponseWriter, r *http.Request) { s.cfg.Front(w, r, v) })(w, r)
		}
		handle(general, "GET /{$}", front)
		handle(open, "GET "+ScriptPath, front)
	}
	handle(socketOnly, "GET /page", s.cachePage(s.pageURL))
	if s.cfg.Kernel != nil {
		handle(socketOnly, "GET /kernel", s.cachePage(func(url.Values) (any, error) { return s.cfg.Kernel.Status(), nil }))
		handle(socketOnly, "POST /kernel", s.cachePage(s.cfg.Kernel.post, "hits"))
	}
	if s.cfg.Cache != nil {
		handle(withToken, "GET /cache/get", s.cachePage(s.cacheGet, "name", "type"))
		handle(socketOnly, "POST /cache/flush", s.cachePage(s.cacheFlush, "name", "zone", "all"))
	}
	handle(socketOnly, "GET /debug/pprof/", s.profile(pprof.Index))
	handle(socketOnly, "GET /debug/pprof/cmdline", s.profile(pprof.Cmdline))
	handle(socketOnly, "GET /debug/pprof/profile", s.profile(pprof.Profile))
	handle(socketOnly, "GET /debug/pprof/symbol", s.profile(pprof.Symbol))
	handle(socketOnly, "GET /debug/pprof/trace", s.profile(pprof.Trace))
	return s.guard(mux)
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
		r, verdict := s.authorize(r)
		if !s.requestThrottle.wait(r) {
			busy(w)
			return
		}
		s.requestThrottle.took(r, requestCost)
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer") // the address may have the token
		refused := s.access.checkBrowser(r)
		switch {
		case !verdict.Allowed():
			refuse(w, verdict)
		case r.ContentLength != 0: // -1 is a body of unknown length
			h.Set("Connection", "close") // leaves the body unread
			http.Error(w, "request bodies are not accepted", http.StatusRequestEntityTooLarge)
		case tooLong(r):
			http.Error(w, fmt.Sprintf("seconds: at most %d", maxProfile), http.StatusBadRequest)
		case refused != nil:
			http.Error(w, refused.Error(), http.StatusForbidden)
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
		panic(defect) // no defect: a handler panics with ErrAbortHandler to break the connection
	}
	s.panics.Add(1)
	panics.Log(r.Context(), s.cfg.Log.With("path", r.URL.Path), "admin", defect)
	if w.begun {
		panic(http.ErrAbortHandler)
	}
	w.Header().Del("Content-Encoding") // the handler set it for its own reply, which the 500 replaces
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
