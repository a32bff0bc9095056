// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cli"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	type view struct {
		State string `json:"state"`
	}
	s, err := admin.New(admin.Config{
		Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return nil },
		Status: func(bool) any { return view{"ready\x1b[31m"} }, // what no terminal should get
	})
	must(t, err)
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	at := server.Listener.Addr().String()
	for _, tt := range []struct {
		name string
		args []string
		want result
	}{
		{"text", []string{"status", "--admin", at}, result{cli.ExitOK, "state  ready?[31m\n", ""}},
		{"json", []string{"status", "--admin", at, "--output", "json"}, result{cli.ExitOK, "{\n  \"state\": \"ready\\u001b[31m\"\n}\n", ""}},
		{"no agent", []string{"status", "--admin", "127.0.0.1:1"}, result{cli.ExitFailed, "", "node-cache: asking the agent at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused\nhint: no agent listens there; set --admin or NODE_CACHE_ADMIN to its admin.address, or to unix: and its admin.socket\n"}},
	} {
		same(t, tt.name, tt.want, command(tt.args...))
	}
}
