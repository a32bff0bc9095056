// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/cli"
)

// TestWatch shows what an agent sends, hostile bytes too, until the agent ends.
func TestWatch(t *testing.T) {
	t.Parallel()
	var sent string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /watch", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			http.Error(w, "eight others watch\nhint: "+r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, sent)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	addr := strings.TrimPrefix(server.URL, "http://")
	const (
		first   = `{"time":"2026-01-02T03:04:05.678Z","name":"www.test.","type":"A","rcode":"NOERROR","source":"upstream","took_seconds":0.00123456,"client":"10.1.2.3","upstream":"udp://192.0.2.1:53"}`
		hostile = `{"time":"2026-01-02T03:04:05.678Z","name":"a.test.","type":"AAAA","rcode":"NXDOMAIN","source":"cache","took_seconds":0.000004,"client":"10.1.2.3","pod":"shop/web` + "\u009b" + `2J","denied":"no_service","ede":19,"ede_text":"Stale NXDOMAIN Answer"}`
		blocked = `{"time":"2026-01-02T03:04:05.678Z","name":"ads.test.","type":"A","rcode":"NXDOMAIN","source":"block","took_seconds":0.00002,"client":"10.1.2.3","list":"ads.txt","rule":"*.test.","ede":15,"ede_text":"Blocked"}`
	)
	for _, tt := range []struct {
		name, flag, sent, stdout, stderr string
	}{
		{"queries", "text", first + "\n" + `{"dropped":7}` + "\n" + hostile + "\n" + blocked + "\n", `
03:04:05.678  NOERROR  upstream    1.23ms  A     www.test.  10.1.2.3  upstream=udp://192.0.2.1:53
(7 more)
03:04:05.678  NXDOMAIN cache           0s  AAAA  a.test.  shop/web?2J  denied=no_service  extended error 19 (Stale NXDOMAIN Answer)
03:04:05.678  NXDOMAIN block         20µs  A     ads.test.  10.1.2.3  list=ads.txt  rule=*.test.  extended error 15 (Blocked)
`, "node-cache: the agent at " + addr + " ended the stream: EOF\n"},
		{"as JSON", "json", hostile + "\n", "\n" + strings.Replace(hostile, "\u009b", `\u009b`, 1) + "\n", "node-cache: the agent at " + addr + " ended the stream: EOF\n"},
		{"not JSON", "text", "x\n", "\n", "node-cache: reading /watch of the agent at " + addr + ": invalid character 'x' looking for beginning of value\n"},
		{"a long line", "text", strings.Repeat("x", cli.MaxWatchLine+1), "\n", "node-cache: the agent at " + addr + " ended the stream: bufio.Scanner: token too long\n"},
	} {
		sent = tt.sent
		same(t, tt.name, result{cli.ExitFailed, tt.stdout[1:], tt.stderr}, command("watch", "--admin", addr, "-o", tt.flag))
	}
	same(t, "refused", result{cli.ExitFailed, "", "node-cache: asking the agent at " + addr + " for /watch: eight others watch\nhint: name=test&rcode=NXDOMAIN\n"},
		command("watch", "--admin", addr, "--name", "test", "--rcode", "NXDOMAIN"))
}
