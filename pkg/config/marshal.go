// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Marshal writes every key of c, in the order of the reference, so that [Parse]
// reads c again, in any role that could have given c. A Config that Parse could
// not have returned is an error.
func Marshal(c Config) ([]byte, error) {
	text := []byte(render(c))
	again, err := Parse(text, Agent) // no key is absent, and an agent may be all that a resolver may
	if err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	if !reflect.DeepEqual(again, c) {
		return nil, errors.New("writing the configuration: it holds values that no file can give")
	}
	return text, nil
}

func render(c Config) string {
	var b strings.Builder
	line := func(indent int, key, value string) {
		b.WriteString(strings.Repeat(" ", indent) + key + ": " + value + "\n")
	}
	head := func(key string) { b.WriteString(key + ":\n") }
	line(0, "apiVersion", apiVersion)
	line(0, "kind", kind)
	head("listen")
	line(2, "addresses", flowList(c.Listen.Addresses))
	line(2, "port", strconv.Itoa(int(c.Listen.Port)))
	line(2, "udpSize", strconv.Itoa(c.Listen.UDPSize))
	head("forward")
	for _, r := range c.Forward {
		line(0, "- zone", text(r.Zone))
		line(2, "to", flowList(r.To))
		line(2, "clientSubnet", map[bool]string{false: "remove", true: "pass"}[r.ClientSubnet])
	}
	head("cache")
	line(2, "size", formatSize(c.Cache.Size))
	line(2, "minTTL", formatDuration(c.Cache.MinTTL))
	line(2, "maxTTL", formatDuration(c.Cache.MaxTTL))
	line(2, "negativeTTL", formatDuration(c.Cache.NegativeTTL))
	line(2, "failureTTL", formatDuration(c.Cache.FailureTTL))
	head("  prefetch")
	line(4, "hits", strconv.Itoa(c.Cache.Prefetch.Hits))
	line(4, "remaining", formatPercent(c.Cache.Prefetch.Remaining))
	head("limits")
	line(2, "inflight", strconv.Itoa(c.Limits.Inflight))
	line(2, "waiting", strconv.Itoa(c.Limits.Waiting))
	line(2, "deadline", formatDuration(c.Limits.Deadline))
	line(2, "tcpSessions", strconv.Itoa(c.Limits.TCPSessions))
	line(2, "tcpPerClient", strconv.Itoa(c.Limits.TCPPerClient))
	line(2, "tcpIdle", formatDuration(c.Limits.TCPIdle))
	head("identity")
	line(2, "version", text(c.Identity.Version))
	line(2, "hostname", text(c.Identity.Hostname))
	head("admin")
	address := ""
	if c.Admin.Address.IsValid() {
		address = c.Admin.Address.String()
	}
	line(2, "address", text(address))
	head("log")
	line(2, "level", text(strings.ToLower(c.Log.Level.String())))
	line(2, "format", text(c.Log.Format))
	line(2, "queries", text(c.Log.Queries.String()))
	return b.String()
}

// text quotes a string. The escapes of Go are escapes of YAML as well.
func text(s string) string { return strconv.QuoteToASCII(s) }

func flowList[T fmt.Stringer](values []T) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = text(v.String())
	}
	return "[" + strings.Join(list, ", ") + "]"
}
