// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// maxRemoved bounds the validation rounds.
const maxRemoved = 25

// finishRoutes moves the routes into the configuration, in order.
func (c *corefile) finishRoutes() {
	if !slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) {
		c.routes = append(c.routes, route{Route: config.Default(config.Agent).Forward[0]})
	}
	c.cfg.Forward = nil
	for _, r := range c.routes {
		r.fill(&r.Route, &c.cfg.Cache)
		c.cfg.Forward = append(c.cfg.Forward, r.Route)
	}
}

// listSources writes the comments for list items, and moves the lists into the configuration.
func (c *corefile) listSources() {
	for path := range c.sources {
		if strings.Contains(path, "[") {
			delete(c.sources, path)
		}
	}
	c.cfg.Rewrite, c.cfg.Templates = nil, nil
	for i, r := range c.routes {
		if r.text != "" {
			c.sources[fmt.Sprintf("forward[%d]", i)] = r.at.String() + ": " + r.text
		}
	}
	for i, r := range c.rewrites {
		c.cfg.Rewrite = append(c.cfg.Rewrite, r.value)
		c.sources[fmt.Sprintf("rewrite[%d]", i)] = r.at.String() + ": " + r.text
	}
	for i, t := range c.templates {
		c.cfg.Templates = append(c.cfg.Templates, t.value)
		c.sources[fmt.Sprintf("templates[%d]", i)] = t.at.String() + ": " + t.text
	}
}

// remove removes what the validation refuses, and notes each item. It removes the last items of a list first, so that the
// other indexes stay valid.
func (c *corefile) remove(problems []config.Problem) {
	type item struct {
		list string
		i    int
	}
	gone := map[item]config.Problem{}
	for _, p := range problems {
		list, i, isItem := cutItem(p.Path)
		switch {
		case isItem && (list == "forward" || list == "rewrite" || list == "templates"):
			if _, again := gone[item{list, i}]; !again {
				gone[item{list, i}] = p
			}
		default:
			c.reset(p)
		}
	}
	for at, p := range gone {
		c.refuse(at.list, at.i, p)
	}
	drop := func(list string, i int) bool { _, found := gone[item{list, i}]; return found }
	c.routes = without(c.routes, func(i int) bool { return drop("forward", i) })
	c.rewrites = without(c.rewrites, func(i int) bool { return drop("rewrite", i) })
	c.templates = without(c.templates, func(i int) bool { return drop("templates", i) })
	c.finishRoutes()
	c.listSources()
}

// refuse notes an item that is removed.
func (c *corefile) refuse(list string, i int, p config.Problem) {
	var at place
	text := p.Path
	switch {
	case list == "forward" && i < len(c.routes):
		at, text = c.routes[i].at, c.routes[i].text
	case list == "rewrite" && i < len(c.rewrites):
		at, text = c.rewrites[i].at, c.rewrites[i].text
	case list == "templates" && i < len(c.templates):
		at, text = c.templates[i].at, c.templates[i].text
	}
	c.noteLost(at, text, p.What, p.Hint)
}

// reset resets a section to its default, and notes the reason.
func (c *corefile) reset(p config.Problem) {
	head, _, _ := strings.Cut(p.Path, ".")
	head, _, _ = strings.Cut(head, "[")
	at := c.firstFile
	for _, path := range slices.Sorted(maps.Keys(c.keys)) {
		if strings.HasPrefix(p.Path, path) || strings.HasPrefix(path, p.Path) {
			at = c.keys[path].at
		}
	}
	c.noteLost(at, p.Path, p.What+"; the section "+head+" stays at its defaults", p.Hint)
	standard := config.Default(config.Agent)
	switch head {
	case "listen":
		c.cfg.Listen = standard.Listen
	case "interface":
		c.cfg.Interface = standard.Interface
	case "intercept":
		c.cfg.Intercept = standard.Intercept
	case "cluster", "clusterDomain":
		c.cfg.Cluster, c.cfg.ClusterDomain = standard.Cluster, standard.ClusterDomain
	case "cache":
		c.cfg.Cache = standard.Cache
	case "hosts":
		c.cfg.Hosts = standard.Hosts
	case "dns64":
		c.cfg.DNS64 = standard.DNS64
	case "admin":
		c.cfg.Admin = standard.Admin
	case "limits":
		c.cfg.Limits = standard.Limits
	case "identity":
		c.cfg.Identity = standard.Identity
	case "log":
		c.cfg.Log = standard.Log
	default:
		c.cfg = standard
		c.routes, c.rewrites, c.templates = nil, nil, nil
	}
	for path := range c.sources {
		if strings.HasPrefix(path, head) {
			delete(c.sources, path)
		}
	}
}

// without returns list without the items for which gone returns true.
func without[T any](list []T, gone func(int) bool) []T {
	var kept []T
	for i, v := range list {
		if !gone(i) {
			kept = append(kept, v)
		}
	}
	return kept
}

// cutItem splits a path such as forward[1].to[0] into the name of the list and the index.
func cutItem(path string) (list string, i int, found bool) {
	list, rest, found := strings.Cut(path, "[")
	number, _, closed := strings.Cut(rest, "]")
	i, err := strconv.Atoi(number)
	return list, i, found && closed && err == nil && !strings.Contains(list, ".")
}
