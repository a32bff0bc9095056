// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"crypto/subtle"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// policy is for a page in addition to its own. Scripts of the page handle its forms, which go nowhere.
const policy = "sandbox allow-scripts allow-forms; default-src 'self' data: 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'"

// Page passes requests of a browser for pages below at, whose path is a secret, on to an agent. The agent takes all requests for those of
// the user, because they come over its unix socket. So other users of this machine, and web sites in the user's browser, must not
// get here: they do not know the path. Only GET is passed on, which changes nothing in the agent.
//
// A compromised agent may answer with anything. It gets none of the browser's headers, such as cookies of another server on
// 127.0.0.1. Its page runs in an origin of its own (sandbox), so its scripts cannot read or write those cookies either, and they
// cannot fetch from other servers.
func Page(at *url.URL, agent http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: agent, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			path := r.In.URL.Path[len(at.Path)-1:]
			r.Out.URL = &url.URL{Scheme: "http", Host: "agent", Path: path, RawQuery: r.In.URL.RawQuery}
			r.Out.Host = ""
			r.Out.Header = http.Header{"Accept": r.In.Header["Accept"]}
			r.Out.Body, r.Out.ContentLength = nil, 0
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header = http.Header{
				"Content-Type":            r.Header["Content-Type"],
				"Content-Security-Policy": append(r.Header["Content-Security-Policy"], policy),
				// Of the page itself, which has no other origin. Others do not know the path.
				"Access-Control-Allow-Origin": {"null"},
				"Cache-Control":               {"no-store"},
				"Referrer-Policy":             {"no-referrer"},
				"X-Content-Type-Options":      {"nosniff"},
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "the connection to the agent has ended", http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.URL.Path[:min(len(r.URL.Path), len(at.Path))]
		switch {
		case subtle.ConstantTimeCompare([]byte(given), []byte(at.Path)) != 1, r.Host != at.Host:
			http.Error(w, "open the URL that `kubectl node-cache page` prints", http.StatusForbidden)
		case r.Method != http.MethodGet:
			http.Error(w, "only GET is relayed", http.StatusMethodNotAllowed)
		default:
			proxy.ServeHTTP(w, r)
		}
	})
}
