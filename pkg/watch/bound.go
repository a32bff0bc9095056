// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// maxEvent is the bytes of the largest event that is read. kube-apiserver takes no object of more than 3 MiB.
	maxEvent = 8 << 20

	// defaultMaxList bounds the bytes of a list where Config.MaxList does not.
	defaultMaxList = 1 << 30

	// maxPages bounds a list of many small pages: full ones have 500 objects.
	maxPages = 2000
)

var (
	errLongEvent = errors.New("the server sends an event of more than 8 MiB")
	errLongList  = errors.New("the server sends a list that is too long")
)

// A boundedReader gives its error once more than left bytes are read.
type boundedReader struct {
	io.ReadCloser
	left *int64
	err  error
}

// Read implements [io.Reader].
func (r boundedReader) Read(p []byte) (int, error) {
	if *r.left <= 0 {
		return 0, r.err
	}
	n, err := r.ReadCloser.Read(p[:min(int64(len(p)), *r.left)])
	*r.left -= int64(n)
	return n, err
}

// listBudget is the key of a context whose requests share a *int64, the bytes that may still be read.
type listBudget struct{}

// A boundedTripper bounds the bodies that client-go reads whole, after they are decompressed: all but those of watches.
type boundedTripper struct {
	next http.RoundTripper
	most int64 // bytes, where the request's context has no budget
}

// RoundTrip implements [http.RoundTripper].
func (t boundedTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusOK && req.URL.Query().Get("watch") == "true" {
		return resp, err
	}
	left, ok := req.Context().Value(listBudget{}).(*int64)
	if !ok {
		left = &t.most // of this call
	}
	resp.Body = boundedReader{resp.Body, left, errLongList}
	return resp, nil
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t boundedTripper) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }

// withBudget has the requests with the context share left.
func withBudget(ctx context.Context, left *int64) context.Context {
	return context.WithValue(ctx, listBudget{}, left)
}

// boundedCodecs bounds each event of a watch. Client-go does so for protobuf alone, and the server chooses the encoding.
type boundedCodecs struct {
	runtime.NegotiatedSerializer
}

// SupportedMediaTypes implements [runtime.NegotiatedSerializer].
func (c boundedCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	list := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range list {
		if list[i].StreamSerializer != nil {
			stream := *list[i].StreamSerializer
			stream.Framer = boundedFramer{stream.Framer}
			list[i].StreamSerializer = &stream
		}
	}
	return list
}

// A boundedFramer takes a stream apart into events of bounded length.
type boundedFramer struct {
	runtime.Framer
}

// NewFrameReader implements [runtime.Framer].
func (f boundedFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	left := int64(maxEvent)
	return frameReader{f.Framer.NewFrameReader(boundedReader{r, &left, errLongEvent}), &left}
}

// A frameReader has maxEvent bytes for each frame.
type frameReader struct {
	io.ReadCloser
	left *int64
}

// Read implements [io.Reader]: without an error it has read the rest of a frame.
func (r frameReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == nil {
		*r.left = maxEvent
	}
	return n, err
}
