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

// writer writes a document line by line.
type writer struct{ strings.Builder }

func (w *writer) line(indent int, key, value string) {
	w.WriteString(strings.Repeat(" ", indent) + key + ": " + value + "\n")
}

func (w *writer) head(key string) { w.WriteString(key + ":\n") }

func render(c Config) string {
	var b writer
	line, head := b.line, b.head
	line(0, "apiVersion", apiVersion)
	line(0, "kind", kind)
	head("listen")
	line(2, "addresses", flowList(c.Listen.Addresses))
	line(2, "port", strconv.Itoa(int(c.Listen.Port)))
	line(2, "udpSize", strconv.Itoa(c.Listen.UDPSize))
	head("forward")
	renderForward(&b, c.Forward)
	line(0, "clusterDomain", text(c.ClusterDomain))
	renderCluster(&b, c.Cluster)
	renderNode(&b, &c)
	head("cache")
	line(2, "size", formatSize(c.Cache.Size))
	line(2, "minTTL", formatDuration(c.Cache.MinTTL))
	line(2, "maxTTL", formatDuration(c.Cache.MaxTTL))
	line(2, "negativeTTL", formatDuration(c.Cache.NegativeTTL))
	line(2, "failureTTL", formatDuration(c.Cache.FailureTTL))
	head("  prefetch")
	line(4, "hits", strconv.Itoa(c.Cache.Prefetch.Hits))
	line(4, "remaining", formatPercent(c.Cache.Prefetch.Remaining))
	head("  serveStale")
	line(4, "for", formatDuration(c.Cache.ServeStale.For))
	line(4, "ttl", formatDuration(c.Cache.ServeStale.TTL))
	line(4, "after", formatDuration(c.Cache.ServeStale.After))
	line(2, "nxdomainCut", onOffText(c.Cache.NXDomainCut))
	head("snapshot")
	line(2, "folder", text(c.Snapshot.Folder))
	line(2, "period", formatDuration(c.Snapshot.Period))
	line(2, "size", formatSize(c.Snapshot.Size))
	line(2, "maxAge", formatDuration(c.Snapshot.MaxAge))
	head("limits")
	line(2, "inflight", strconv.Itoa(c.Limits.Inflight))
	line(2, "waiting", strconv.Itoa(c.Limits.Waiting))
	line(2, "perClient", strconv.Itoa(c.Limits.PerClient))
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
	line(2, "socket", text(c.Admin.Socket))
	head("log")
	line(2, "level", text(strings.ToLower(c.Log.Level.String())))
	line(2, "format", text(c.Log.Format))
	line(2, "queries", text(c.Log.Queries.String()))
	return b.String()
}

func renderForward(b *writer, routes []Route) {
	line, head := b.line, b.head
	for _, r := range routes {
		line(0, "- zone", text(r.Zone))
		line(2, "to", flowList(r.To))
		line(2, "bootstrap", flowList(r.Bootstrap))
		line(2, "policy", r.Policy.String())
		line(2, "connections", strconv.Itoa(r.Connections))
		line(2, "rate", strconv.Itoa(r.Rate))
		line(2, "case", onOffText(!r.PlainCase))
		head("  tls")
		line(4, "ca", text(r.CA))
		head("  https")
		line(4, "method", r.Method.String())
		line(2, "clientSubnet", map[bool]string{false: "remove", true: "pass"}[r.ClientSubnet])
		line(2, "minTTL", formatDuration(r.MinTTL))
		line(2, "maxTTL", formatDuration(r.MaxTTL))
		line(2, "negativeTTL", formatDuration(r.NegativeTTL))
		line(2, "cache", onOffText(!r.NoCache))
	}
}

func renderCluster(b *writer, c Cluster) {
	line, head := b.line, b.head
	head("cluster")
	line(2, "resolver", c.Resolver.String())
	line(2, "kubeconfig", text(c.Kubeconfig))
	line(2, "manifests", text(c.Manifests))
	head("  central")
	line(4, "service", text(c.Central.Service.String()))
	line(4, "addresses", flowList(c.Central.Addresses))
	line(4, "connections", strconv.Itoa(c.Central.Connections))
	line(2, "invalidate", strconv.FormatBool(c.Invalidate))
	line(2, "endpoints", c.Endpoints.String())
	line(2, "endpointNames", map[bool]string{false: "address", true: "pod"}[c.PodNames])
	line(2, "pods", c.Pods.String())
	line(2, "namespaces", flowTexts(c.Namespaces))
	line(2, "serviceSelector", text(c.ServiceSelector))
	line(2, "namespaceSelector", text(c.NamespaceSelector))
	line(2, "ignoreEmptyService", strconv.FormatBool(c.IgnoreEmptyService))
	line(2, "ttl", formatDuration(c.TTL))
	line(2, "staleAfter", formatDuration(c.StaleAfter))
	line(2, "ranges", flowList(c.Ranges))
	line(2, "nodeZone", text(c.NodeZone))
	line(2, "transferTo", flowList(c.TransferTo))
}

func renderNode(b *writer, c *Config) {
	line, head := b.line, b.head
	head("interface")
	line(2, "manage", strconv.FormatBool(c.Interface.Manage))
	line(2, "name", text(c.Interface.Name))
	line(2, "kind", c.Interface.Kind.String())
	head("intercept")
	line(2, "manage", strconv.FormatBool(c.Intercept.Manage))
	line(2, "mode", c.Intercept.Mode.String())
	line(2, "backend", c.Intercept.Backend.String())
	line(2, "lease", formatDuration(c.Intercept.Lease))
	line(2, "fallback", c.Intercept.Fallback.String())
	line(2, "onExit", c.Intercept.OnExit.String())
	line(2, "services", flowList(c.Intercept.Services))
}

// text quotes a string. The escapes of Go are escapes of YAML as well.
func text(s string) string { return strconv.QuoteToASCII(s) }

// onOffText quotes the word, which YAML 1.1 would read as a boolean.
func onOffText(on bool) string { return text(map[bool]string{false: "off", true: "on"}[on]) }

func flowList[T fmt.Stringer](values []T) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return flowTexts(list)
}

func flowTexts(values []string) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = text(v)
	}
	return "[" + strings.Join(list, ", ") + "]"
}
