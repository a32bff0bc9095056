// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestCiliumObjects: a server without the objects, one that refuses them, and one that lies.
func TestCiliumObjects(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.start()
		answer := func(code int, body string) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("resourceVersion") != "0" {
					w.t.Errorf("%s is not asked for as of the server's memory", r.URL)
				}
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(code)
				_, _ = rw.Write([]byte(body))
			}
		}
		const (
			daemons = `{"spec": {"template": {"spec": {"containers": [{"name": "other", "image": "x"}, {"name": "cilium-agent", "image": "quay.io/cilium/cilium:v1.15.19@sha256:0"}]}}}}`
			config  = `{"data": {"enable-ipv6": "false"}}`
			denied  = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`
			none    = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
		)
		for _, tt := range []struct {
			name    string
			daemons http.HandlerFunc
			config  http.HandlerFunc
			image   string
			found   bool
			err     string
		}{
			{name: "both", daemons: answer(200, daemons), config: answer(200, config), image: "quay.io/cilium/cilium:v1.15.19@sha256:0", found: true},
			{name: "no container of that name", daemons: answer(200, `{}`), config: answer(200, config), found: true},
			{name: "no DaemonSet", daemons: answer(404, none), config: answer(200, config)},
			{name: "no permission", daemons: answer(200, daemons), config: answer(403, denied)},
			{name: "no JSON", daemons: answer(200, "<html>"), config: answer(200, config), err: "reading /apis/apps/v1/namespaces/kube-system/daemonsets/cilium: "},
			{name: "without end", daemons: answer(200, daemons), config: answer(200, `{"data": {"x": "`+strings.Repeat("x", 17<<20)+`"}}`), err: "larger than the limit"},
		} {
			w.server.Answer("daemonsets", tt.daemons)
			w.server.Answer("configmaps", tt.config)
			image, options, found, err := w.watch.CiliumObjects(w.t.Context())
			if image != tt.image || found != tt.found || (options["enable-ipv6"] == "false") != tt.found ||
				(err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				w.t.Errorf("%s: %q, %v, %t, %v", tt.name, image, options, found, err)
			}
		}
		w.server.Kill()
		_, _, _, err := w.watch.CiliumObjects(w.t.Context())
		assert.Same(t, "an error without a server", true, err != nil)
	})
}
