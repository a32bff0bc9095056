// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cli"
)

func TestKernelCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		want result
	}{
		{"status", result{cli.ExitOK, "state  on\n", ""}},
		{"status -o json", result{cli.ExitOK, "{\n  \"state\": \"on\"\n}\n", ""}},
		{"off", result{cli.ExitOK, "state  off by `node-cache kernel off`\n", ""}},
		{"on", result{cli.ExitFailed, "", "node-cache: asking the agent at ADDR for /kernel: off by configuration\nhint: set kernel.hits to auto\n"}},
	} {
		state := "on"
		s, err := admin.New(admin.Config{
			Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return nil }, Status: func(bool) any { return nil },
			Kernel: &admin.Kernel{
				Status: func() any { return map[string]string{"state": state} },
				Set: func(on bool) (any, error) {
					if on {
						return nil, errors.New("off by configuration\nhint: set kernel.hits to auto")
					}
					state = "off by `node-cache kernel off`"
					return map[string]string{"state": state}, nil
				},
			},
		})
		must(t, err)
		addr := serveSocket(t, s.Handler())
		got := command(append([]string{"kernel", "--admin", addr}, strings.Split(tt.args, " ")...)...)
		got.Stderr = strings.ReplaceAll(got.Stderr, addr, "ADDR")
		same(t, tt.args, tt.want, got)
	}
}
