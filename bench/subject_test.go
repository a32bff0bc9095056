// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"testing"
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
			if got := parseVersion(tt.text); got != tt.want {
				t.Errorf("parseVersion = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestConfigsPoint checks that each server listens where it is asked and forwards to the upstream.
func TestConfigsPoint(t *testing.T) {
	t.Parallel()
	at := site{dir: "/run/x", conf: "/run/x/conf", port: 5999, upstream: 5888, admin: 5777}
	for _, s := range subjects() {
		if s.name == floorName {
			continue
		}
		text := strings.Join(s.args(at), " ")
		if s.config != nil {
			if !strings.Contains(text, at.conf) {
				t.Errorf("%s is not given its configuration: %s", s.name, text)
			}
			text = s.config(at)
		}
		texts := []string{text}
		if s.overTCP != nil {
			if texts = append(texts, s.overTCP(at)); !strings.Contains(strings.ToLower(texts[1]), "tcp") {
				t.Errorf("%s says nothing of TCP:\n%s", s.name, texts[1])
			}
		}
		for _, text := range texts {
			for _, port := range []int{at.port, at.upstream} {
				if strings.Count(text, strconv.Itoa(port)) != 1 {
					t.Errorf("%s does not name port %d once:\n%s", s.name, port, text)
				}
			}
		}
	}
}
