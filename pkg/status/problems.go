// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A HintError is an error and what the operator can do about it.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the text of Err.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *HintError) Unwrap() error { return e.Err }

// A Problem is something wrong that the operator should fix.
type Problem struct {
	Where string `json:"where"` // a configuration key, or a kind of objects
	What  string `json:"what"`
	Hint  string `json:"hint"`
}

// Details are what [Problems] needs besides the status.
type Details struct {
	Empty   []string        // zones of routes without an upstream
	Watch   *watch.Stats    // of the cluster's source
	Cluster *config.Cluster // as configured
	Memory  []Problem
}

// Problems lists what is wrong, the configuration first, because other problems may follow from it.
func Problems(s *Status, d Details) []Problem {
	list := sourceProblems(&s.Config)
	for _, zone := range d.Empty {
		list = append(list, Problem{
			Where: "forward " + zone, What: "no upstream is configured",
			Hint: "add a nameserver to the resolv.conf, or an upstream to the configuration",
		})
	}
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		list = append(list, serverProblems(u.where(), []Server{u.Server})...)
	}
	list = append(list, staticProblems(s.Static)...)
	list = append(list, snapshotProblems(s.Snapshot)...)
	list = append(list, nodeProblems(s.Node)...)
	if s.Cluster != nil {
		list = append(list, clusterProblems(s.Cluster, d.Watch, d.Cluster)...)
	}
	list = append(list, d.Memory...)
	list = append(list, foreignProblems(s.Foreign)...)
	list = append(list, probeProblems(s.Probes)...)
	return append(list, handoverProblems(s.Handover)...)
}

// clusterProblems reports what is wrong with the cluster's data and the central resolver.
func clusterProblems(c *Cluster, stats *watch.Stats, cfg *config.Cluster) (list []Problem) {
	if cfg.Manifests != "" { // the manifests' problems include these
		stats = &watch.Stats{}
	}
	for i := range stats.Kinds {
		if p, ok := kindProblem(&stats.Kinds[i], cfg.StaleAfter); ok {
			list = append(list, p)
		}
	}
	for i := range c.Kinds {
		if k := &c.Kinds[i]; k.Refused > 0 {
			list = append(list, oversizeProblem(k))
		}
	}
	if bad := c.Manifests; len(bad) > 0 {
		list = append(list, Problem{
			Where: "cluster.manifests", What: fmt.Sprintf("%s, the first in %s: %s", count(len(bad), "problem"), cmp.Or(bad[0].File, "the folder itself"), bad[0].What),
			Hint: "fix the files listed in cluster.manifestProblems; all other objects are served",
		})
	}
	if p, ok := centralProblem(c.Central, stats); ok {
		list = append(list, p)
	}
	if c.Central != nil {
		list = append(list, serverProblems("cluster.central", c.Central.Endpoints)...)
	}
	return list
}

// sourceProblems reports a configuration that is unreadable, refused, replaced by the last good one, or not
// saved.
func sourceProblems(s *Config) (list []Problem) {
	if s.Unread != nil {
		list = append(list, Problem{Where: "config", What: s.Unread.What, Hint: s.Unread.Hint})
	}
	old := s.LastGood != nil && s.LastGood.InUse
	if !s.LastOK && (s.Unread == nil || !old) { // else the unread problem is the reason
		list = append(list, refusedProblem(s))
	}
	if old {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration of " + cmp.Or(s.File, s.Object) + " is in use, from " + s.LastGood.Folder,
			Hint: "there was no valid configuration at the start; the next valid one replaces it",
		})
	}
	if s.LastGood != nil && s.LastGood.LastError != "" {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration is not saved: " + s.LastGood.LastError,
			Hint: "check that the folder is writable and has free space; the agent retries every minute",
		})
	}
	return list
}

// refusedProblem reports a configuration that was read and refused.
func refusedProblem(s *Config) Problem {
	first, _, _ := strings.Cut(s.LastError, "\n")
	thing, place := "file", "the file"
	if s.Object != "" {
		thing, place = "configuration", "ConfigMap "+s.Object
	}
	return Problem{
		Where: "config", What: fmt.Sprintf("the last %s was refused: %s", thing, first),
		Hint: "fix " + place + "; config.lastError lists all errors. The previous configuration stays in use",
	}
}

// serverProblems reports the servers that cannot be used now, and why. A failing server may recover by
// itself, so it is reported only if connections to it fail.
func serverProblems(where string, servers []Server) (list []Problem) {
	for i := range servers {
		s := &servers[i]
		switch {
		case s.State == "looped":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is left out: it forwards queries back to this agent", s.Address),
				Hint: "check where it forwards to; the agent retries by itself",
			})
		case s.State != "good" && s.LastError != "":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is %s: %s", s.Address, s.State, s.LastError),
				Hint: "check that it is reachable and that its certificate matches the configured name; the agent retries by itself",
			})
		case s.State == "down":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is down: its latest queries timed out", s.Address),
				Hint: "check that it runs and is reachable from this pod; the agent retries by itself",
			})
		}
	}
	return list
}

// staticProblems reports problems of hosts files.
func staticProblems(s *Static) (list []Problem) {
	if s == nil {
		return nil
	}
	for i := range s.Files {
		f := &s.Files[i]
		if f.LastError != "" {
			list = append(list, Problem{
				Where: "hosts.files", What: f.LastError,
				Hint: "check that the file exists and that this user can read it; its previous content is served meanwhile",
			})
		}
		if f.Skipped > 0 {
			list = append(list, Problem{
				Where: "hosts.files", What: count(f.Skipped, "line") + " of " + f.Path + " are invalid",
				Hint: "fix the file: each line holds an address and its names, see hosts(5)",
			})
		}
	}
	return list
}

// snapshotProblems reports failed saves: the next start would load an older snapshot.
func snapshotProblems(s *Snapshot) []Problem {
	if s == nil || s.LastError == "" {
		return nil
	}
	return []Problem{{
		Where: "snapshot", What: s.LastError,
		Hint: "check that snapshot.folder is writable and has free space; the agent retries by itself",
	}}
}

// nodeProblems reports what is wrong with link and interception.
func nodeProblems(s *Node) []Problem {
	if s == nil {
		return nil
	}
	return append(linkProblems(s.Link), interceptProblems(s.Intercept)...)
}

func linkProblems(l *Link) []Problem {
	if l == nil {
		return nil
	}
	if l.StoodDown {
		return []Problem{{
			Where: "interface", What: "a newer agent owns the link " + l.Name,
			Hint: "two agents run on this node: stop one of them",
		}}
	}
	var list []Problem
	for _, missing := range l.Missing {
		list = append(list, Problem{
			Where: "interface", What: fmt.Sprintf("not on %s: %s", l.Name, missing),
			Hint: "the agent retries by itself; the addresses of the other family are served",
		})
	}
	for _, other := range l.Elsewhere {
		list = append(list, Problem{
			Where: "interface", What: "another link has the address, too: " + other,
			Hint: "remove the address from that link, or set another listen address; another node cache may still run",
		})
	}
	if l.Contested {
		list = append(list, Problem{
			Where: "interface", What: "something on the node undoes the repairs of " + l.Name,
			Hint: "exclude the link from networkd or NetworkManager, see docs/node.md",
		})
	}
	return list
}

func interceptProblems(i *Intercept) []Problem {
	if i == nil {
		return nil
	}
	var list []Problem
	if i.Note != "" {
		list = append(list, Problem{Where: "intercept", What: i.Note, Hint: "see the data planes in docs/node.md"})
	}
	if i.Waiting != "" {
		return append(list, Problem{
			Where: "intercept", What: "no query is intercepted: waiting for " + i.Waiting,
			Hint: "check that the service exists, or set intercept.services; mode link-local needs no service",
		})
	}
	if i.StoodDown {
		return append(list, Problem{
			Where: "intercept", What: "a newer agent, " + i.NewOwner + ", has taken over the rules",
			Hint: "two agents run on this node: stop one of them. This one still serves, but maintains neither lease nor rules",
		})
	}
	for _, lease := range i.Leases {
		if !lease.Held {
			list = append(list, Problem{
				Where: "intercept", What: fmt.Sprintf("the lease on %s is not held: %s", lease.Address, cmp.Or(lease.Problem, "not taken yet")),
				Hint: "its queries go to the fallback, if one is set; run `node-cache doctor` on the node",
			})
		}
	}
	if i.LastError != "" {
		list = append(list, Problem{
			Where: "intercept", What: "the rules are wrong: " + i.LastError,
			Hint: "the agent retries by itself; while a lease is held its queries are answered",
		})
	}
	if i.From != "" && i.From != "none" && len(i.Fallback) == 0 {
		list = append(list, Problem{
			Where: "intercept", What: "there is no fallback: without this agent, queries to its addresses time out",
			Hint: "check that cluster.central.service has ready endpoints, or set addresses in intercept.fallback",
		})
	}
	for _, lease := range i.Leases {
		if i.From != "" && len(i.Fallback) > 0 && !slices.ContainsFunc(i.Fallback, sameFamily(lease.Address)) {
			list = append(list, Problem{
				Where: "intercept", What: "there is no fallback of the IP family of " + lease.Address,
				Hint: "without this agent, queries to that address time out: add a fallback of its family, or remove the listen address",
			})
		}
	}
	return list
}

// sameFamily returns a function that reports whether an address with a port is of addr's family.
func sameFamily(addr string) func(string) bool {
	v6 := strings.Contains(addr, ":")
	return func(to string) bool { return strings.HasPrefix(to, "[") == v6 }
}

// kindProblem reports a kind that is not synced or not fresh.
func kindProblem(k *watch.KindStats, staleAfter time.Duration) (Problem, bool) {
	p := Problem{Where: zone.Kinds()[k.Kind], Hint: apiHint(k.LastError, resource(k.Kind))}
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

// oversizeProblem reports objects over their namespace's memory limit.
func oversizeProblem(k *Kind) Problem {
	return Problem{
		Where: k.Kind,
		What:  fmt.Sprintf("%s refused, the last is %s: a namespace may use 1/%d of the Go runtime's memory limit", count(int(k.Refused), "object"), k.Last, NamespacePart),
		Hint:  "check whether that namespace needs so many objects; if so, raise the container's memory limit",
	}
}

// centralProblem reports what is wrong with the central resolver.
func centralProblem(c *Central, stats *watch.Stats) (Problem, bool) {
	if c == nil {
		return Problem{}, false
	}
	p := Problem{Where: "cluster.central"}
	switch {
	case !c.InSync:
		p.What = fmt.Sprintf("the endpoints of %s are unknown: %s", c.Service, cmp.Or(stats.ServiceWatch.LastError, "no response yet"))
		p.Hint = apiHint(stats.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	case len(c.Endpoints) == 0:
		p.What = fmt.Sprintf("%s has no ready endpoint and no address", c.Service)
		p.Hint = "check that the service exists, has TCP port 53, and has ready pods"
	case c.Service != "" && c.Endpoints[0].Last: // ready servers come first
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

// foreignProblems reports the processes that share the agent's port.
func foreignProblems(list []Socket) (problems []Problem) {
	for _, s := range list {
		problems = append(problems, Problem{
			Where: "listen", What: fmt.Sprintf("%s is also bound to %s (socket inode %d)", s.Process, s.Socket, s.Inode),
			Hint: "stop that program, or configure another address for it; on the node, `ss -lnptue` shows the process of the inode (ino)",
		})
	}
	return problems
}

// probeProblems reports the failing probes. A single failure may be a lost packet, so it is not reported.
func probeProblems(probes []Probe) (list []Problem) {
	for i := range probes {
		if p := &probes[i]; p.Row > 1 {
			list = append(list, Problem{
				Where: "probe " + p.Label, What: fmt.Sprintf("%s for %s from %s, %d times in a row", p.LastError, p.Question, p.Server, p.Row),
				Hint: "check that server; the probe continues by itself",
			})
		}
	}
	return list
}

// handoverProblems reports what keeps a successor from taking over.
func handoverProblems(s *Handover) []Problem {
	if s == nil || s.LastError == "" || s.Given != "" {
		return nil
	}
	return []Problem{{
		Where: "handover", What: s.LastError,
		Hint: "check that the folder of handover.socket exists, is writable, and is used by no other agent; the agent retries by itself",
	}}
}

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
