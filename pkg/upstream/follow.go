// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/follow"
)

// followFiles rereads the resolv.conf files on every change until ctx ends.
func (p *Pool) watchFiles(ctx context.Context) {
	var files []*resolvConf
	var paths []string
	for _, src := range p.sources {
		if f := src.resolvConf; f != nil {
			files = append(files, f)
			paths = append(paths, f.path, f.systemdPath)
		}
	}
	if len(files) == 0 {
		<-ctx.Done()
		return
	}
	unpublished := false // what was read: a defect has cut a look short
	follow.Files(ctx, follow.Config{
		Paths: paths, Log: p.log,
		Look: func(bool) time.Duration {
			changed := unpublished
			unpublished = true
			p.reload(ctx, files, changed)
			unpublished = false
			return 0
		},
		Defect: func(panicked any, stack []byte) { p.logPanic(ctx, panicked, stack) },
	})
}

// reload reads the files and publishes a new list if one has changed, or has before.
func (p *Pool) reload(ctx context.Context, files []*resolvConf, changed bool) {
	for _, f := range files {
		if f.reload(ctx) {
			changed = true
			p.log.InfoContext(ctx, "resolv.conf changed", "path", f.path, "upstreams", f.servers)
		}
	}
	p.reapDrained()
	if changed {
		p.publishSources()
	}
}
