// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, want string
	}{
		{name: "unbound", text: "Version 1.17.1\n\nConfigure line: --build=x86_64\n", want: "1.17.1"},
		{name: "dnsdist", text: "dnsdist 1.7.3 (Lua 5.1.4 [LuaJIT 2.1.0-beta3])", want: "1.7.3"},
		{name: "kresd", text: "Knot Resolver, version 5.6.0\n", want: "5.6.0"},
		{name: "dnsmasq", text: "Dnsmasq version 2.90  Copyright (c) 2000-2024 Simon Kelley\n", want: "2.90"},
		{name: "a date before the version", text: "Nov 20 22:40:23 PowerDNS Recursor 4.8.8 (C) 2001-2022", want: "4.8.8"},
		{name: "coredns", text: "CoreDNS-1.14.7\nlinux/amd64, go1.26.8, \n", want: "1.14.7"},
		{name: "node-cache", text: "node-cache v0.1.0-3-gabcdef0 (go1.26.8)\n", want: "v0.1.0-3-gabcdef0"},
		{name: "node-cache without a tag", text: "node-cache b7077ef go1.26.8 linux/amd64\n", want: "b7077ef"},
		{name: "none", text: "usage: server [flags]\n", want: "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "parseVersion", tt.want, parseVersion(tt.text))
		})
	}
}

// TestConfigsPoint checks that each server listens where it is asked and forwards to the upstream.
func TestConfigsPoint(t *testing.T) {
	t.Parallel()
	for _, s := range subjects() {
		if s.name == floorName {
			continue
		}
		for _, start := range s.starts() {
			at := &site{Dir: "/run/x", Conf: "/run/x/conf", Port: 5999, Upstream: 5888, Admin: 5777, OverTCP: start.tcp}
			text := expanded(t, at, s.args)
			if s.config != "" {
				if !strings.Contains(text, at.Conf) {
					t.Errorf("%s is not given its configuration: %s", s.name, text)
				}
				config, err := configs.ReadFile("configs/" + s.config)
				assert.NoError(t, err)
				text = expanded(t, at, string(config))
			}
			if start.tcp && !strings.Contains(strings.ToLower(text), "tcp") {
				t.Errorf("%s says nothing of TCP:\n%s", s.name, text)
			}
			for _, port := range []int{at.Port, at.Upstream} {
				if strings.Count(text, strconv.Itoa(port)) != 1 {
					t.Errorf("%s does not name port %d once:\n%s", s.name, port, text)
				}
			}
		}
	}
}

func expanded(t *testing.T, at *site, text string) string {
	t.Helper()
	out, err := at.expand(text)
	assert.NoError(t, err)
	return out
}
