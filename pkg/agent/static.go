// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"reflect"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/static"
)

// staticAnswers are the configured answers and their configuration. They survive a reload that does not
// change that. If only the hosts are unchanged, the new ones reuse what was read from hosts files.
type staticAnswers struct {
	hosts     config.Hosts
	templates []config.Template
	answers   *static.Static
}

// staticFor returns old's hosts and templates if unchanged, else new ones; nil: there are none.
func (a *Agent) staticFor(cfg *config.Config, old *generation) (*staticAnswers, error) {
	if len(cfg.Hosts.Names)+len(cfg.Hosts.Files)+len(cfg.Templates) == 0 {
		return nil, nil //nolint:nilnil // hosts and templates are optional
	}
	f := &staticAnswers{hosts: cfg.Hosts, templates: cfg.Templates}
	if old != nil && old.static != nil && reflect.DeepEqual(old.static.hosts, f.hosts) && reflect.DeepEqual(old.static.templates, f.templates) {
		return old.static, nil
	}
	s := static.Config{Files: f.hosts.Files, TTL: f.hosts.TTL, NoReverse: f.hosts.NoReverse, Log: a.log}
	if old != nil && old.static != nil {
		s.Predecessor = old.static.answers
	}
	for _, h := range f.hosts.Names {
		s.Names = append(s.Names, static.Host{Name: h.Name, Addresses: h.Addresses})
	}
	for i := range f.templates {
		t, err := templateOf(&f.templates[i])
		if err != nil {
			return nil, fmt.Errorf("templates[%d]: %w", i, err)
		}
		s.Templates = append(s.Templates, t)
	}
	var err error
	if f.answers, err = static.New(s); err != nil {
		return nil, err
	}
	return f, nil
}

// templateOf parses the records of a configured template.
func templateOf(t *config.Template) (static.Template, error) {
	out := static.Template{Zone: t.Zone, Types: t.Types, Match: t.Match, Rcode: t.Rcode}
	for _, section := range []struct {
		to   *[]static.Record
		from []string
	}{{&out.Answer, t.Answer}, {&out.Authority, t.Authority}, {&out.Additional, t.Additional}} {
		for _, text := range section.from {
			record, err := config.ParseRecord(text)
			if err != nil {
				return out, err
			}
			*section.to = append(*section.to, func(q *static.Question) (dns.RR, error) { return record.Make((*config.TemplateData)(q)) })
		}
	}
	return out, nil
}

// planRewrites adds rewrites, DNS64, and static answers to the plan.
func (r *generation) planRewrites(p *resolve.Plan) (err error) {
	cfg := &r.config
	if r.static != nil {
		p.Static = r.static.answers
	}
	if len(cfg.Rewrite) > 0 {
		kinds := map[config.RewriteKind]resolve.RewriteKind{
			config.RewriteExact: resolve.RewriteExact, config.RewritePrefix: resolve.RewritePrefix, config.RewriteSuffix: resolve.RewriteSuffix,
		}
		rules := make([]resolve.Rewrite, 0, len(cfg.Rewrite))
		for _, rule := range cfg.Rewrite {
			rules = append(rules, resolve.Rewrite{Kind: kinds[rule.Kind], From: rule.From, To: rule.To})
		}
		if p.Rewrites, err = resolve.NewRewrites(rules); err != nil {
			return err
		}
	}
	if cfg.DNS64.Prefix.IsValid() {
		p.DNS64, err = resolve.NewDNS64(resolve.DNS64Config{
			Prefix: cfg.DNS64.Prefix, All: cfg.DNS64.TranslateAll, IPv4: cfg.DNS64.Clients == config.DNS64All,
		})
	}
	return err
}

// staticStats returns the stats of hosts and templates; nil: there are none.
func (r *generation) staticStats() *static.Stats {
	if r.static == nil {
		return nil
	}
	st := r.static.answers.Stats()
	return &st
}

// StaticStatus describes the answers from the configuration.
type StaticStatus struct {
	Names     int               `json:"names"`     // in hosts
	Addresses int               `json:"addresses"` // of those names
	Templates int               `json:"templates"`
	Failures  uint64            `json:"failures"` // queries that a template could not answer
	Files     []HostsFileStatus `json:"files,omitempty"`
}

// HostsFileStatus is one hosts file.
type HostsFileStatus struct {
	Path      string `json:"path"`
	Names     int    `json:"names"`
	Skipped   int    `json:"skipped,omitempty"` // invalid lines
	Reads     uint64 `json:"reads"`             // versions loaded since the start
	LastError string `json:"lastError,omitempty"`
}

// staticStatus returns nil if the configuration answers nothing.
func staticStatus(st *static.Stats) *StaticStatus {
	if st == nil {
		return nil
	}
	s := &StaticStatus{Names: st.Names, Addresses: st.Addresses, Templates: st.Templates, Failures: st.Failures}
	for i := range st.Files {
		f := &st.Files[i]
		file := HostsFileStatus{Path: f.Path, Names: f.Names, Skipped: f.Skipped, Reads: f.Reads}
		if f.Err != nil {
			file.LastError = f.Err.Error()
		}
		s.Files = append(s.Files, file)
	}
	return s
}

// staticProblems reports problems of hosts files.
func staticProblems(s *StaticStatus) (list []Problem) {
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
