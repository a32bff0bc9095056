// SPDX-License-Identifier: Apache-2.0

package config

import "time"

const (
	apiVersion = "node-cache.io/v1alpha1"
	kind       = "Config"
)

// day is the largest step that people think in and Go durations lack.
const day = 24 * time.Hour

// configFields are the keys of the document. The tables in this file are the only list of keys and ranges.
func configFields(c *Config) []field {
	return []field{
		{"apiVersion", exactly(apiVersion)},
		{"kind", exactly(kind)},
		{"listen", section(listenFields(&c.Listen))},
		{"forward", routes(&c.Forward)},
		{"clusterDomain", clusterDomain(&c.ClusterDomain)},
		{"cluster", section(clusterFields(&c.Cluster))},
		{"hosts", section(hostsFields(&c.Hosts))},
		{"rewrite", rewrites(&c.Rewrite)},
		{"templates", templates(&c.Templates)},
		{"dns64", section(dns64Fields(&c.DNS64))},
		{"interface", section(interfaceFields(&c.Interface))},
		{"intercept", section(interceptFields(&c.Intercept))},
		{"cache", section(cacheFields(&c.Cache))},
		{"snapshot", section(snapshotFields(&c.Snapshot))},
		{"handover", section([]field{{"socket", socketPath(&c.Handover.Socket, "/run/node-cache/handover.sock")}})},
		{"limits", section(limitsFields(&c.Limits))},
		{"identity", section(identityFields(&c.Identity))},
		{"admin", section([]field{
			{"address", optionalEndpoint(&c.Admin.Address)},
			{"socket", socketPath(&c.Admin.Socket, "/run/node-cache/admin.sock")},
			{"hosts", set(&c.Admin.Hosts, node.hostName)},
		})},
		{"probes", probes(&c.Probes)},
		{"log", section(logFields(&c.Log))},
	}
}

// section reads a mapping whose keys are known.
func section(known []field) func(node) {
	return func(n node) { n.fields(known) }
}

func listenFields(l *Listen) []field {
	return []field{
		{"addresses", addresses(&l.Addresses)},
		{"port", whole(&l.Port, 1, 65535)},
		{"udpSize", whole(&l.UDPSize, 512, 4096)},
	}
}

func routeFields(r *Route) []field {
	return []field{
		{"zone", zone(&r.Zone)},
		{"to", targets(&r.To)},
		{"bootstrap", set(&r.Bootstrap, node.bootstrap)},
		{"policy", oneOf(&r.Policy)},
		{"connections", whole(&r.Connections, 1, 16)},
		{"rate", whole(&r.Rate, 0, 1_000_000)},
		{"case", onOff(&r.PlainCase, false)},
		{"trustAD", onOff(&r.TrustAD, true)},
		{"tls", section([]field{{"ca", location(&r.CA)}})},
		{"https", section([]field{{"method", oneOf(&r.Method)}})},
		{"fallback", onOff(&r.NoFallback, false)},
		{"clientSubnet", clientSubnet(&r.ClientSubnet)},
		{"minTTL", ttl(&r.MinTTL, 0, time.Hour)},
		{"maxTTL", ttl(&r.MaxTTL, time.Second, 7*day)},
		{"negativeTTL", ttl(&r.NegativeTTL, time.Second, day)},
		{"cache", onOff(&r.NoCache, false)},
	}
}

func clusterFields(c *Cluster) []field {
	return []field{
		{"resolver", oneOf(&c.Resolver)},
		{"kubeconfig", location(&c.Kubeconfig)},
		{"manifests", location(&c.Manifests)},
		{"central", section([]field{
			{"service", serviceName(&c.Central.Service)},
			{"addresses", set(&c.Central.Addresses, node.server)},
			{"connections", whole(&c.Central.Connections, 1, 16)},
		})},
		{"invalidate", boolean(&c.Invalidate)},
		{"endpoints", oneOf(&c.Endpoints)},
		{"endpointNames", endpointNames(&c.PodNames)},
		{"pods", oneOf(&c.Pods)},
		{"namespaces", set(&c.Namespaces, node.namespace)},
		{"serviceSelector", labelSelector(&c.ServiceSelector)},
		{"namespaceSelector", labelSelector(&c.NamespaceSelector)},
		{"ignoreEmptyService", boolean(&c.IgnoreEmptyService)},
		{"ttl", ttl(&c.TTL, 0, time.Hour)},
		{"staleAfter", duration(&c.StaleAfter, 5*time.Second, time.Hour)},
		{"ranges", set(&c.Ranges, node.prefix)},
		{"nodeZone", topologyZone(&c.NodeZone)},
		{"transferTo", set(&c.TransferTo, node.client)},
	}
}

func hostsFields(h *Hosts) []field {
	return []field{
		{"files", set(&h.Files, node.filePath)},
		{"names", hostNames(&h.Names)},
		{"ttl", ttl(&h.TTL, 0, time.Hour)},
		{"reverse", onOff(&h.NoReverse, false)},
	}
}

func templateFields(t *Template) []field {
	return []field{
		{"zone", zone(&t.Zone)},
		{"types", set(&t.Types, node.questionType)},
		{"match", set(&t.Match, node.expression)},
		{"rcode", rcode(&t.Rcode)},
		{"answer", list(&t.Answer, node.record)},
		{"authority", list(&t.Authority, node.record)},
		{"additional", list(&t.Additional, node.record)},
	}
}

func dns64Fields(d *DNS64) []field {
	return []field{
		{"prefix", dns64Prefix(&d.Prefix)},
		{"translateAll", boolean(&d.TranslateAll)},
		{"clients", oneOf(&d.Clients)},
	}
}

func probeFields(p *Probe) []field {
	return []field{
		{"label", probeLabel(&p.Label)},
		{"server", probeServer(&p.Server)},
		{"name", probeName(&p.Name)},
		{"type", questionType(&p.Type)},
		{"interval", duration(&p.Interval, time.Second, time.Hour)},
		{"timeout", duration(&p.Timeout, 10*time.Millisecond, time.Minute)},
	}
}

func interfaceFields(i *Interface) []field {
	return []field{
		{"manage", boolean(&i.Manage)},
		{"name", linkName(&i.Name)},
		{"kind", oneOf(&i.Kind)},
	}
}

func interceptFields(i *Intercept) []field {
	return []field{
		{"manage", boolean(&i.Manage)},
		{"mode", oneOf(&i.Mode)},
		{"backend", oneOf(&i.Backend)},
		{"lease", duration(&i.Lease, time.Second, time.Minute)},
		{"fallback", fallback(&i.Fallback)},
		{"onExit", oneOf(&i.OnExit)},
		{"services", services(&i.Services)},
	}
}

func cacheFields(c *Cache) []field {
	return []field{
		{"size", size(&c.Size, 1<<20, 1<<40)},
		{"minTTL", ttl(&c.MinTTL, 0, time.Hour)},
		{"maxTTL", ttl(&c.MaxTTL, time.Second, 7*day)},
		{"negativeTTL", ttl(&c.NegativeTTL, time.Second, day)},
		{"failureTTL", ttl(&c.FailureTTL, time.Second, 5*time.Minute)},
		{"prefetch", section([]field{
			{"hits", whole(&c.Prefetch.Hits, 0, 1_000_000)},
			{"remaining", percent(&c.Prefetch.Remaining, 1, 90)},
		})},
		{"serveStale", section([]field{
			{"for", ttl(&c.ServeStale.For, 0, 3*day)},
			{"ttl", ttl(&c.ServeStale.TTL, time.Second, 5*time.Minute)},
			{"after", duration(&c.ServeStale.After, 10*time.Millisecond, 30*time.Second)},
		})},
		{"nxdomainCut", onOff(&c.NXDomainCut, true)},
	}
}

func snapshotFields(s *Snapshot) []field {
	return []field{
		{"folder", location(&s.Folder)},
		{"period", duration(&s.Period, 10*time.Second, time.Hour)},
		{"size", size(&s.Size, 1<<20, 1<<30)},
		{"maxAge", duration(&s.MaxAge, time.Minute, 7*day)},
	}
}

func limitsFields(l *Limits) []field {
	return []field{
		{"inflight", whole(&l.Inflight, 1, 1<<20)},
		{"waiting", whole(&l.Waiting, 1, 1<<24)},
		{"perClient", whole(&l.PerClient, 0, 1<<24)},
		{"deadline", duration(&l.Deadline, 100*time.Millisecond, time.Minute)},
		{"tcpSessions", whole(&l.TCPSessions, 1, 1<<20)},
		{"tcpPerClient", whole(&l.TCPPerClient, 1, 1<<20)},
		{"tcpIdle", duration(&l.TCPIdle, time.Second, time.Hour)},
	}
}

func identityFields(i *Identity) []field {
	return []field{
		{"version", characterString(&i.Version)},
		{"hostname", characterString(&i.Hostname)},
	}
}

func logFields(l *Log) []field {
	return []field{
		{"level", level(&l.Level)},
		{"format", choice(&l.Format, "json", "text")},
		{"queries", queryLog(&l.Queries)},
	}
}
