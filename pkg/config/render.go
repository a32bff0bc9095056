// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"
)

// config writes every key.
func (w *writer) config(c *Config) {
	line, head := w.line, w.head
	line(0, "apiVersion", apiVersion)
	line(0, "kind", kind)
	head("listen")
	line(2, "addresses", flowList(c.Listen.Addresses))
	line(2, "port", strconv.Itoa(int(c.Listen.Port)))
	line(2, "udpSize", strconv.Itoa(c.Listen.UDPSize))
	w.forward(c.Forward)
	line(0, "clusterDomain", text(c.ClusterDomain))
	w.cluster(&c.Cluster)
	w.static(c)
	w.node(c)
	w.cache(&c.Cache)
	head("snapshot")
	line(2, "folder", text(c.Snapshot.Folder))
	line(2, "period", formatDuration(c.Snapshot.Period))
	line(2, "size", formatSize(c.Snapshot.Size))
	line(2, "maxAge", formatDuration(c.Snapshot.MaxAge))
	head("handover")
	line(2, "socket", text(c.Handover.Socket))
	w.limits(&c.Limits)
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
	line(2, "hosts", flowTexts(c.Admin.Hosts))
	w.probes(c.Probes)
	head("log")
	line(2, "level", text(strings.ToLower(c.Log.Level.String())))
	line(2, "format", text(c.Log.Format))
	line(2, "queries", text(c.Log.Queries.String()))
}

func (w *writer) cache(c *Cache) {
	line, head := w.line, w.head
	head("cache")
	line(2, "size", formatSize(c.Size))
	line(2, "minTTL", formatDuration(c.MinTTL))
	line(2, "maxTTL", formatDuration(c.MaxTTL))
	line(2, "negativeTTL", formatDuration(c.NegativeTTL))
	line(2, "failureTTL", formatDuration(c.FailureTTL))
	head("  prefetch")
	line(4, "hits", strconv.Itoa(c.Prefetch.Hits))
	line(4, "remaining", formatPercent(c.Prefetch.Remaining))
	head("  serveStale")
	line(4, "for", formatDuration(c.ServeStale.For))
	line(4, "ttl", formatDuration(c.ServeStale.TTL))
	line(4, "after", formatDuration(c.ServeStale.After))
	line(2, "nxdomainCut", onOffText(c.NXDomainCut))
}

func (w *writer) limits(l *Limits) {
	line := w.line
	w.head("limits")
	line(2, "inflight", strconv.Itoa(l.Inflight))
	line(2, "waiting", strconv.Itoa(l.Waiting))
	line(2, "perClient", strconv.Itoa(l.PerClient))
	line(2, "deadline", formatDuration(l.Deadline))
	line(2, "tcpSessions", strconv.Itoa(l.TCPSessions))
	line(2, "tcpPerClient", strconv.Itoa(l.TCPPerClient))
	line(2, "tcpIdle", formatDuration(l.TCPIdle))
}

func (w *writer) forward(routes []Route) {
	line, head := w.line, w.head
	if w.noForward {
		return
	}
	w.items("forward", len(routes))
	for i, r := range routes {
		w.item("forward", i)
		w.first("zone", text(r.Zone))
		line(2, "to", flowList(r.To))
		line(2, "bootstrap", flowList(r.Bootstrap))
		line(2, "policy", r.Policy.String())
		line(2, "connections", strconv.Itoa(r.Connections))
		line(2, "rate", strconv.Itoa(r.Rate))
		line(2, "case", onOffText(!r.PlainCase))
		line(2, "trustAD", onOffText(r.TrustAD))
		head("  tls")
		line(4, "ca", text(r.CA))
		head("  https")
		line(4, "method", r.Method.String())
		line(2, "fallback", onOffText(!r.NoFallback))
		line(2, "clientSubnet", map[bool]string{false: "remove", true: "pass"}[r.ClientSubnet])
		line(2, "minTTL", formatDuration(r.MinTTL))
		line(2, "maxTTL", formatDuration(r.MaxTTL))
		line(2, "negativeTTL", formatDuration(r.NegativeTTL))
		line(2, "cache", onOffText(!r.NoCache))
	}
}

func (w *writer) cluster(c *Cluster) {
	line, head := w.line, w.head
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

// static writes what is answered, or asked for, by the configuration's own word.
func (w *writer) static(c *Config) {
	line, head := w.line, w.head
	head("hosts")
	line(2, "files", flowTexts(c.Hosts.Files))
	if len(c.Hosts.Names) == 0 {
		line(2, "names", "{}")
	} else {
		head("  names")
		for _, h := range c.Hosts.Names {
			line(4, text(h.Name), flowList(h.Addresses))
		}
	}
	line(2, "ttl", formatDuration(c.Hosts.TTL))
	line(2, "reverse", onOffText(!c.Hosts.NoReverse))
	w.items("rewrite", len(c.Rewrite))
	for i, r := range c.Rewrite {
		w.item("rewrite", i)
		w.first(r.Kind.String(), text(r.From))
		line(2, "to", text(r.To))
	}
	w.items("templates", len(c.Templates))
	for i, t := range c.Templates {
		types := make([]string, len(t.Types))
		for i, typ := range t.Types {
			types[i] = spellType(typ)
		}
		w.item("templates", i)
		w.first("zone", text(t.Zone))
		line(2, "types", flowTexts(types))
		line(2, "match", flowTexts(t.Match))
		line(2, "rcode", spellRcode(t.Rcode))
		line(2, "answer", flowTexts(t.Answer))
		line(2, "authority", flowTexts(t.Authority))
		line(2, "additional", flowTexts(t.Additional))
	}
	head("dns64")
	prefix := ""
	if c.DNS64.Prefix.IsValid() {
		prefix = c.DNS64.Prefix.String()
	}
	line(2, "prefix", text(prefix))
	line(2, "translateAll", strconv.FormatBool(c.DNS64.TranslateAll))
	line(2, "clients", c.DNS64.Clients.String())
}

func (w *writer) node(c *Config) {
	line, head := w.line, w.head
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

func (w *writer) probes(probes []Probe) {
	line := w.line
	w.items("probes", len(probes))
	for i, p := range probes {
		w.item("probes", i)
		w.first("label", text(p.Label))
		line(2, "server", text(p.Server))
		line(2, "name", text(p.Name))
		line(2, "type", spellType(p.Type))
		line(2, "interval", formatDuration(p.Interval))
		line(2, "timeout", formatDuration(p.Timeout))
	}
}
