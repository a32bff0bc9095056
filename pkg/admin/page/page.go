// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/resolve"
)

var (
	//go:embed page.html
	source string
	//go:embed page.js
	script []byte
)

// reuse is how long a rendered page is sent again, so that the cost does not depend on the number of browsers.
const reuse = 500 * time.Millisecond

// Config configures a Page. All fields are required.
type Config struct {
	Status     func() status.Status
	Stats      func() resolve.Stats
	Recent     func() *top.Recent
	SearchPath func() bool // the value of pods.searchPath
	Now        func() time.Time
}

// A Page is the page at /, with the history of its plots.
type Page struct {
	cfg      Config
	template *template.Template
	policy   string // Content-Security-Policy
	history  history

	mu       sync.Mutex           // guards rendered
	rendered map[string]rendering // renderings by View.Token
}

// A rendering is a rendered page.
type rendering struct {
	at   time.Time
	html []byte
}

// New parses the template. It starts no goroutine.
func New(cfg Config) (*Page, error) {
	t, err := template.New("page").Funcs(functions()).Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parsing the page: %w", err)
	}
	_, style, _ := strings.Cut(source, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	hash := sha256.Sum256([]byte(style))
	return &Page{
		cfg: cfg, template: t, rendered: map[string]rendering{},
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
			"'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}, nil
}

// Run records the history until ctx ends.
func (p *Page) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		p.record()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// record adds a sample. It allocates nothing.
func (p *Page) record() {
	st := p.cfg.Stats()
	p.history.add(sampleOf(&st, p.cfg.Now()))
}

// Serve implements Front of [admin.Config].
func (p *Page) Serve(w http.ResponseWriter, r *http.Request, v admin.View) {
	w.Header().Set("Content-Security-Policy", p.policy)
	if r.URL.Path == admin.ScriptPath {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		_, _ = w.Write(script)
		return
	}
	body, err := p.render(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(body)
}

// render returns the page. Clients that wait for the same page get one rendering.
func (p *Page) render(v admin.View) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	if last := p.rendered[v.Token]; now.Sub(last.at) < reuse {
		return last.html, nil
	}
	var b bytes.Buffer
	if err := p.template.Execute(&b, p.contentOf(v, now)); err != nil {
		return nil, fmt.Errorf("rendering the page: %w", err)
	}
	p.rendered[v.Token] = rendering{now, b.Bytes()}
	return b.Bytes(), nil
}
