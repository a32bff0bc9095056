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

// A fixture is what the configuration itself answers, and the part of it that says so.
// It outlives a reload that leaves that as it is. One that leaves the hosts as they are takes them over, with what was
// read of files.
type fixture struct {
	hosts     config.Hosts
	templates []config.Template
	answers   *static.Static
}

// fixtureFor is old's hosts and templates if they stay, else new ones; nil: there are
// none.
func (a *Agent) fixtureFor(cfg *config.Config, old *running) (*fixture, error) {
	if len(cfg.Hosts.Names)+len(cfg.Hosts.Files)+len(cfg.Templates) == 0 {
		return nil, nil //nolint:nilnil // a configuration without them has none
	}
	f := &fixture{hosts: cfg.Hosts, templates: cfg.Templates}
	if old != nil && old.fixture != nil && reflect.DeepEqual(old.fixture.hosts, f.hosts) && reflect.DeepEqual(old.fixture.templates, f.templates) {
		return old.fixture, nil
	}
	s := static.Config{Files: f.hosts.Files, TTL: f.hosts.TTL, NoReverse: f.hosts.NoReverse, Log: a.log}
	if old != nil && old.fixture != nil {
		s.Before = old.fixture.answers
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

// templateOf is a template of the configuration with its records read.
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

// planDetours gives the plan what the configuration says of other names and addresses
// than a client asks for, and what it answers itself.
func (r *running) planDetours(p *resolve.Plan) (err error) {
	cfg := &r.config
	if r.fixture != nil {
		p.Static = r.fixture.answers
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

// staticStats is what there is to say of hosts and templates; nil: there are none.
func (r *running) staticStats() *static.Stats {
	if r.fixture == nil {
		return nil
	}
	st := r.fixture.answers.Stats()
	return &st
}
