// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A Problem is something wrong that the operator should fix.
type Problem struct {
	Reason  Reason `json:"reason"`
	Where   string `json:"where"`             // a configuration key, or a kind of objects
	Subject string `json:"subject,omitempty"` // which of several there, such as a server; empty: there is only one
	What    string `json:"what"`
	Hint    string `json:"hint"`
	Since   string `json:"since,omitempty"` // RFC 3339; empty: it was not there five seconds ago
}

// A Key identifies a problem: its text may change while it lasts.
type Key struct {
	Reason         Reason
	Where, Subject string
}

// Key returns the key of the problem.
func (p *Problem) Key() Key { return Key{p.Reason, p.Where, p.Subject} }

// Problems lists what is wrong, the configuration first, because other problems may follow from it. It takes the stats of the
// cluster's source, the cluster as configured, the zones of routes without an upstream, and the problems of the memory.
func Problems(s *Status, watched *watch.Stats, cluster *config.Cluster, empty []string, memory []Problem) []Problem {
	list := make(problems, 0, len(memory))
	list.addSource(&s.Config)
	for _, zone := range empty {
		list.add(NoUpstream, Forward(zone), "no upstream is configured",
			"add a nameserver to the resolv.conf, or an upstream to the configuration")
	}
	for start, end := 0, 0; start < len(s.Upstreams); start = end { // for each zone
		var servers []Server
		for ; end < len(s.Upstreams) && s.Upstreams[end].Zone == s.Upstreams[start].Zone; end++ {
			servers = append(servers, s.Upstreams[end].Server)
		}
		list.addServers(s.Upstreams[start].where(), servers)
	}
	if s.Static != nil {
		list.addStatic(s.Static)
	}
	list.addKeep(s.Cache.Keep)
	list.addBlock(s.Block)
	list.addEtcd(s.Etcd)
	if s.Snapshot != nil {
		list.addSnapshot(s.Snapshot)
	}
	if s.Node != nil && s.Node.Link != nil {
		list.addLink(s.Node.Link)
	}
	if s.Node != nil && s.Node.Intercept != nil {
		list.addIntercept(s.Node.Intercept, s.Config.Standby)
	}
	if s.Cluster != nil {
		list.addCluster(s.Cluster, watched, cluster)
	}
	list.addKernel(s.Kernel)
	list = append(list, memory...)
	for _, f := range s.Foreign {
		list.add(ForeignSocket, "listen", fmt.Sprintf("%s is also bound to %s (socket inode %d)", f.Process, f.Socket, f.Inode),
			"stop that program, or configure another address for it; on the node, `ss -lnptue` shows the process of the inode (ino)").Subject = f.Socket
	}
	for i := range s.Probes {
		if p := &s.Probes[i]; p.Row > 1 { // a single failure may be a lost packet
			list.add(ProbeFails, "probe "+p.Label, fmt.Sprintf("%s for %s from %s, %d times in a row", p.LastError, p.Question, p.Server, p.Row),
				"check that server; the probe continues by itself")
		}
	}
	if h := s.Handover; h != nil && h.LastError != "" && h.Given == nil {
		list.add(HandoverFails, "handover", h.LastError,
			"check that the folder of handover.socket exists, is writable, and is used by no other agent; the agent retries by itself")
	}
	return list
}

// addKeep adds the names of cache.keep neither of whose answers is held.
func (l *problems) addKeep(answers []KeepAnswer) {
	for i := 0; i+1 < len(answers); i += 2 {
		if a, b := &answers[i], &answers[i+1]; a.lost && b.lost {
			l.add(KeepFails, "cache.keep", fmt.Sprintf("%s would not survive an outage of upstreams: its A is %s, its AAAA %s", a.Name, a.State, b.State),
				"check the name with `node-cache query --explain`; leave it out if it does not exist").Subject = a.Name
		}
	}
}

// Notices lists what the agent copes with.
func Notices(s *Status) []Problem {
	var list problems
	for i := range s.Upstreams {
		list.addLimitations(s.Upstreams[i].where(), &s.Upstreams[i].Server)
	}
	if s.Cluster != nil && s.Cluster.Central != nil {
		for i := range s.Cluster.Central.Endpoints {
			list.addLimitations(CentralKey, &s.Cluster.Central.Endpoints[i])
		}
	}
	return list
}

func (l *problems) addLimitations(where string, s *Server) {
	if len(s.Limitations) > 0 {
		l.add(UpstreamLimited, where, fmt.Sprintf("%s has limitations: %s", s.Address, strings.Join(s.Limitations, ", ")),
			"nothing needs to be done; docs/upstreams.md lists the limitations").Subject = s.Address
	}
}

// problems is a list under construction.
type problems []Problem

func (l *problems) add(reason Reason, where, what, hint string) *Problem {
	*l = append(*l, Problem{Reason: reason, Where: where, What: what, Hint: hint})
	return &(*l)[len(*l)-1]
}

// addCluster adds what is wrong with the cluster's data and the central resolver.
func (l *problems) addCluster(c *Cluster, stats *watch.Stats, cfg *config.Cluster) {
	if cfg.Manifests != "" { // the objects come from files: c.Manifests lists what is wrong with them
		stats = &watch.Stats{}
	}
	for i := range stats.Kinds {
		if p, ok := kindProblem(&stats.Kinds[i], cfg.StaleAfter); ok {
			*l = append(*l, p)
		}
	}
	if stats.OwnPods != nil {
		l.addOwnPods(stats, cfg.StaleAfter)
	}
	if p, ok := FederationProblem(c.Federated); ok {
		*l = append(*l, p)
	}
	for i := range c.Kinds {
		if k := &c.Kinds[i]; k.Refused > 0 {
			l.add(ObjectsRefused, k.Kind, fmt.Sprintf("%s refused, the last is %s: a namespace may use 1/%d of the Go runtime's memory limit",
				count(int(k.Refused), "object"), k.LastRefused, NamespacePart),
				"check whether that namespace needs so many objects; if so, raise the container's memory limit")
		}
	}
	for i := range c.Kinds {
		if k := &c.Kinds[i]; k.Invalid > 0 {
			l.add(ObjectsInvalid, k.Kind, fmt.Sprintf("%s invalid and not served in full, the first is %s", count(k.Invalid, "object"), k.Example),
				"fix the object, or the controller that writes it; all others are served")
		}
	}
	if bad := c.Manifests; len(bad) > 0 {
		l.add(ManifestsInvalid, "cluster.manifests",
			fmt.Sprintf("%s, the first in %s: %s", count(len(bad), "problem"), cmp.Or(bad[0].File, "the folder itself"), bad[0].What),
			"fix the files listed in cluster.manifestProblems; all other objects are served")
	}
	if c.Central == nil {
		return
	}
	if p, ok := centralProblem(c.Central, stats); ok {
		*l = append(*l, p)
	}
	l.addServers(CentralKey, c.Central.Endpoints)
}

// FederationProblem reports federations without aliases.
func FederationProblem(list []Federation) (Problem, bool) {
	return Problem{
		Reason: FederationUnknown, Where: "cluster.federations",
		What: "names of Services that are not here get SERVFAIL: the topology zone or region of this node is unknown, or is no name",
		Hint: "set the environment variables NODE_ZONE and NODE_REGION, or NODE_NAME: then permit the agent to get that Node, which needs the labels " +
			"topology.kubernetes.io/zone and topology.kubernetes.io/region when the agent starts",
	}, slices.ContainsFunc(list, func(f Federation) bool { return f.Suffix == "" })
}

// addOwnPods adds what is wrong with the watch of the node's pods.
func (l *problems) addOwnPods(stats *watch.Stats, staleAfter time.Duration) {
	p, ok := kindProblem(stats.OwnPods, staleAfter)
	if !ok {
		return
	}
	if stats.PodSource != watch.SourceServer {
		p.Hint = "check that the kubelet serves the Pods API (feature gate PodsAPI) and that the agent has its folder " +
			filepath.Dir(watch.PodsSocket) + ", or set pods.identity to auto; the agent retries by itself"
	}
	l.add(PodsUnknown, "pods.identity", p.What, p.Hint)
}

// addSource adds a configuration that is unreadable, refused, replaced by the last good one, or not saved.
func (l *problems) addSource(s *Config) {
	if s.Unread != nil {
		l.add(ConfigUnreadable, s.Unread.Where, s.Unread.What, s.Unread.Hint)
	}
	old := s.LastGood != nil && s.LastGood.InUse
	if !s.LastOK && (s.Unread == nil || !old) { // with an unreadable source and the last good configuration, the problem above is enough
		first, _, _ := strings.Cut(s.LastError, "\n")
		thing, place := "file", "the file"
		if s.Object != "" {
			thing, place = "configuration", "ConfigMap "+s.Object
		}
		l.add(ConfigRefused, "config", fmt.Sprintf("the last %s was refused: %s", thing, first),
			"fix "+place+"; config.lastError lists all errors. The previous configuration stays in use")
	}
	if len(s.NeedRestart) > 0 {
		l.add(ConfigNeedsRestart, "config", "a restart is needed for "+strings.Join(s.NeedRestart, ", ")+"; all other keys are in use",
			"run `kubectl -n kube-system rollout restart daemonset/node-cache`, or restart this process")
	}
	if old {
		l.add(LastGoodInUse, "config", "the last good configuration of "+cmp.Or(s.File, s.Object)+" is in use, from "+s.LastGood.Folder,
			"there was no valid configuration at the start; the next valid one replaces it")
	}
	if s.LastGood != nil && s.LastGood.LastError != "" {
		l.add(LastGoodNotSaved, "config", "the last good configuration is not saved: "+s.LastGood.LastError,
			"check that the folder is writable and has free space; the agent retries every minute")
	}
}

// addServers adds the upstream servers of one route that cannot be used now, and why; first of all, if there is none that can. A
// server in state failing may recover by itself, so it is reported only if connections to it fail.
func (l *problems) addServers(where string, servers []Server) {
	if len(servers) > 0 && !slices.ContainsFunc(servers, func(s Server) bool { return s.State == "good" || s.State == "failing" }) {
		l.add(RouteDown, where, "no upstream gives a good answer: "+listed(servers),
			"check the network of this node first, then the upstreams; names in the cache get stale answers meanwhile, others fail or go to the fallback")
	}
	for i := range servers {
		s := &servers[i]
		switch {
		case s.State == "errors":
			l.add(UpstreamErrors, where, fmt.Sprintf("%s answers with errors only, the latest is %s", s.Address, s.Cause),
				"check that it serves these names, and that it permits queries from this node; it is asked as before").Subject = s.Address
		case s.State == "looped":
			l.add(UpstreamLooped, where, fmt.Sprintf("%s is left out: it forwards queries back to this agent", s.Address),
				"check where it forwards to; the agent retries by itself").Subject = s.Address
		case s.State != "good" && s.LastError != "":
			l.add(UpstreamDown, where, fmt.Sprintf("%s is %s: %s", s.Address, s.State, s.LastError),
				"check that it is reachable and that its certificate matches the configured name; the agent retries by itself").Subject = s.Address
		case s.State == "down":
			l.add(UpstreamDown, where, fmt.Sprintf("%s is down: its latest queries got no answer (%s)", s.Address, s.Cause),
				"check that it runs and is reachable from this pod; the agent retries by itself").Subject = s.Address
		}
	}
}

// listed lists servers with their states, at most three.
func listed(servers []Server) string {
	const most = 3
	var b strings.Builder
	for i, s := range servers[:min(len(servers), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s.Address + " " + s.State)
		if s.Cause != "" {
			b.WriteString(" (" + s.Cause + ")")
		}
	}
	if more := len(servers) - most; more > 0 {
		_, _ = fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// addEtcd adds problems of the records of etcd; nil: etcd is not used.
func (l *problems) addEtcd(e *etcd.Stats) {
	if e == nil {
		return
	}
	if e.LastError != "" {
		l.add(EtcdUnavailable, "etcd", fmt.Sprintf("%s; %d records are served", e.LastError, e.Records),
			"check etcd.endpoints, network policies, etcd.tls and the user's permission to read etcd.prefix; the agent retries by itself")
	}
	if e.Invalid > 0 {
		l.add(EtcdInvalid, "etcd", fmt.Sprintf("%s invalid and not served, the first at %s", count(e.Invalid, "record"), e.Why),
			"correct these values in etcd; all other records are served")
	}
	if e.Refused > 0 {
		l.add(EtcdFull, "etcd", fmt.Sprintf("%s not served: the memory for records is full", count(e.Refused, "record")),
			"delete records below etcd.prefix that are not used, or set fewer zones")
	}
}

// addStatic adds problems of hosts files.
func (l *problems) addStatic(s *localdata.Stats) {
	for i := range s.Files {
		f := &s.Files[i]
		if f.LastError != "" {
			l.add(HostsUnreadable, "hosts.files", f.LastError,
				"check that the file exists and that this user can read it; "+meanwhile(f.Names, "served")).Subject = f.Path
		}
		if f.Skipped > 0 {
			l.add(HostsInvalid, "hosts.files", count(f.Skipped, "line")+" of "+f.Path+" invalid",
				"fix the file: each line holds an address and its names, see hosts(5)").Subject = f.Path
		}
	}
}

// addBlock adds problems of block lists; nil: there are none.
func (l *problems) addBlock(s *blocklist.Stats) {
	if s == nil {
		return
	}
	for i := range s.Files {
		f := &s.Files[i]
		if f.LastError != "" {
			l.add(BlockUnreadable, "block.files", f.LastError,
				"check what writes the file, and that this user can read it; "+meanwhile(f.Names+f.Exceptions, "used")).Subject = f.Path
		}
		if f.Skipped > 0 {
			l.add(BlockInvalid, "block.files", fmt.Sprintf("%s of %s invalid, the first is line %d", count(f.Skipped, "line"), f.Path, f.FirstSkipped),
				"fix the file: docs/blocking.md has the formats; all other lines are used").Subject = f.Path
		}
	}
}

// meanwhile says what is used of a file that cannot be read, by its number of names.
func meanwhile(names int, used string) string {
	if names == 0 {
		return "nothing of it is " + used
	}
	return "its previous content is " + used + " meanwhile"
}

// addSnapshot adds a failed save: the next start would load an older snapshot.
func (l *problems) addSnapshot(s *Snapshot) {
	if s.LastError != "" {
		l.add(SnapshotFails, "snapshot", s.LastError, "check that snapshot.folder is writable and has free space; the agent retries by itself")
	}
}

func (l *problems) addLink(link *netif.Stats) {
	if link.StoodDown {
		l.add(TakenOver, "interface", "a newer agent owns the link "+link.Name, "two agents run on this node: stop one of them")
		return
	}
	for _, missing := range link.Missing {
		l.add(LinkIncomplete, "interface", fmt.Sprintf("not on %s: %s", link.Name, missing),
			"the agent retries by itself; the addresses of the other family are served").Subject = missing
	}
	for _, other := range link.Duplicates {
		l.add(AddressElsewhere, "interface", "another link has the address, too: "+other,
			"remove the address from that link, or set another listen address; another node cache may still run").Subject = other
	}
	if link.Contested {
		l.add(LinkContested, "interface", "something on the node undoes the repairs of "+link.Name,
			"exclude the link from networkd or NetworkManager, see docs/node.md")
	}
}

func (l *problems) addIntercept(i *Intercept, standby bool) {
	const where = "intercept"
	if i.Note != "" && i.Mode != config.ModeLinkLocal { // what the notes say concerns the Service's address
		l.add(NotIntercepted, where, i.Note, "see the data planes in docs/node.md")
	}
	for _, a := range i.NotLocal {
		follows := "with BPF host routing queries of pods are lost"
		if i.Lost != "" {
			follows = "queries of pods are lost, and so is their fallback"
		}
		what := fmt.Sprintf("Cilium does not take %s for an address of the node: %s", a, follows)
		l.add(NotIntercepted, where, what,
			`set Cilium's option local-max-addr-scope: "254", or upgrade it to 1.19`).Subject = a.String()
	}
	switch {
	case i.Waiting != "":
		l.add(NotIntercepted, where, "no query is intercepted: waiting for "+i.Waiting,
			"check that the service exists, or set intercept.services; mode link-local needs no service")
		return
	case i.StoodDown:
		l.add(TakenOver, where, "a newer agent, "+i.NewOwner+", has taken over the rules",
			"two agents run on this node: stop one of them. This one still serves, but maintains neither lease nor rules")
		return
	}
	switch {
	case i.Standby:
		l.add(Standby, where, "the fallback answers all queries of this node: the configuration has standby",
			"`kubectl node-cache on` ends it, or standby: false in the configuration")
	case standby:
		l.add(Standby, where, "the configuration has standby, but no fallback is known: this agent answers on",
			"check that cluster.central.service has ready endpoints, or set addresses in intercept.fallback")
	}
	for _, lease := range i.Leases {
		if !lease.Held && !i.Standby {
			l.add(LeaseNotHeld, where, fmt.Sprintf("the lease on %s is not held: %s", lease.Address, cmp.Or(lease.Problem, "not taken yet")),
				"its queries go to the fallback, if one is set; run `node-cache doctor` in its pod").Subject = lease.Address.String()
		}
	}
	if i.LastError != "" {
		l.add(RulesWrong, where, "the rules are wrong: "+i.LastError, "the agent retries by itself; while a lease is held its queries are answered")
	}
	if i.From != "" && i.From != "none" && len(i.Fallback) == 0 {
		l.add(NoFallback, where, "there is no fallback: without this agent, queries to its addresses time out",
			"check that cluster.central.service has ready endpoints, or set addresses in intercept.fallback")
	}
	for _, lease := range i.Leases {
		if lease.Fallback == intercept.FallbackBroken {
			l.add(FallbackBroken, where, fmt.Sprintf("the fallback of %s is broken: %s", lease.Address, lease.FallbackWhy),
				"without this agent, queries of its pods fail, or some of them: check these servers, then run `node-cache doctor` in its pod").Subject = lease.Address.String()
		}
		if i.From != "" && len(i.Fallback) > 0 && !slices.ContainsFunc(i.Fallback, func(to netip.AddrPort) bool { return to.Addr().Is4() == lease.Address.Is4() }) {
			l.add(NoFallback, where, "there is no fallback of the IP family of "+lease.Address.String(),
				"without this agent, queries to that address time out: add a fallback of its family, or remove the listen address").Subject = lease.Address.String()
		}
	}
}

// kindProblem reports a kind that is not synced or not fresh.
func kindProblem(k *watch.KindStats, staleAfter time.Duration) (Problem, bool) {
	p := Problem{Reason: ObjectsStale, Where: zone.Kinds()[k.Kind], Hint: apiHint(k.LastError, resource(k.Kind))}
	switch {
	case !k.Synced:
		p.What = "not synced: " + cmp.Or(k.LastError, "no response yet")
	case k.Age > staleAfter:
		p.What = fmt.Sprintf("not confirmed fresh for %s: %s", k.Age.Round(time.Second), cmp.Or(k.LastError, "no response"))
	case k.LastError != "":
		p.What = k.LastError
	default:
		return Problem{}, false
	}
	return p, true
}

// NamespacePart is the part of the Go runtime's memory limit that the objects of one namespace may use: 1/NamespacePart.
const NamespacePart = 4

// centralProblem reports what is wrong with the central resolver.
func centralProblem(c *Central, stats *watch.Stats) (Problem, bool) {
	p := Problem{Reason: CentralUnusable, Where: CentralKey}
	discovered := cmp.Or(c.Discovery, new(discovery.Stats))
	switch {
	case discovered.LastError != "":
		p.What = fmt.Sprintf("the endpoints of %s cannot be looked up: %s", c.Service, discovered.LastError)
		p.Hint = "check that this Service of cluster.central.headless is headless, has TCP port dns-tcp, and has ready pods of node-cache resolver"
	case !c.InSync && c.Discovery != nil: // not yet
		return Problem{}, false
	case !c.InSync:
		p.What = fmt.Sprintf("the endpoints of %s are unknown: %s", c.Service, cmp.Or(stats.ServiceWatch.LastError, "no response yet"))
		p.Hint = apiHint(stats.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	case len(c.Endpoints) == 0:
		p.What = fmt.Sprintf("%s has no ready endpoint and no address", c.Service)
		p.Hint = "check that the service exists, has TCP port 53, and has ready pods"
	case c.Service != "" && c.Endpoints[0].Last: // the first is the Service's own address: ready endpoints would come before it
		p.What = fmt.Sprintf("no endpoint of %s is ready: queries go to its cluster IP", c.Service)
		p.Hint = "check that the service's pods are ready"
	case stats.ServiceWatch.LastError != "":
		p.What = stats.ServiceWatch.LastError
		p.Hint = apiHint(stats.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	default:
		return Problem{}, false
	}
	return p, true
}

// resource returns the RBAC name of a kind.
func resource(k zone.Kind) string {
	switch k {
	case zone.Services:
		return "services"
	case zone.Slices:
		return "endpointslices.discovery.k8s.io"
	case zone.Namespaces:
		return "namespaces"
	case zone.Imports:
		return "serviceimports.multicluster.x-k8s.io"
	case zone.ImportSlices:
		return "endpointslices.discovery.k8s.io"
	default:
		return "pods"
	}
}

// apiHint returns what to do about an error of the cluster's source.
func apiHint(err, resources string) string {
	reason, _, _ := strings.Cut(err, ":")
	switch reason {
	case "forbidden":
		return "grant this process list and watch of " + resources
	case "unauthorized":
		return "the API server refused the credentials: check the service account or the kubeconfig"
	case "", "unreachable", "frozen":
		return "check that the API server is reachable from this pod; the agent retries by itself"
	case "internal":
		return "this is a bug: report it with the stack trace in the log"
	default:
		return "check the API server's health; the agent retries by itself"
	}
}

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
