// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// A codec writes objects in the format that the client accepts.
type codec struct {
	factory serializer.CodecFactory
}

func newCodec() codec {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	return codec{serializer.NewCodecFactory(scheme)}
}

// media returns the first encoding that the client accepts.
func (c codec) media(r *http.Request) runtime.SerializerInfo {
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if info, ok := runtime.SerializerInfoForMediaType(c.factory.SupportedMediaTypes(), accepted); ok && info.StreamSerializer != nil {
			return info
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(c.factory.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info
}

// versionOf returns the group and version of an object.
func versionOf(o runtime.Object) schema.GroupVersion {
	switch o.(type) {
	case *discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList:
		return discoveryv1.SchemeGroupVersion
	default:
		return corev1.SchemeGroupVersion
	}
}

// encode returns the object's bytes.
func (c codec) encode(info runtime.SerializerInfo, o runtime.Object) []byte {
	b, err := runtime.Encode(c.factory.EncoderForVersion(info.Serializer, versionOf(o)), o.DeepCopyObject()) // encoding writes into it
	utilruntime.Must(err)
	return b
}

// write answers with the object.
func (c codec) write(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) {
	info := c.media(r)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(c.encode(info, o)) // the client may be gone
}

// fail answers with a Status that describes an error.
func (c codec) fail(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason, message string) {
	c.write(w, r, code, failure(code, reason, message))
}

func failure(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
}

func notYet() *metav1.Status {
	s := failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version")
	s.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}, RetryAfterSeconds: 1}
	return s
}

// events writes the events of one watch.
type events struct {
	codec codec
	info  runtime.SerializerInfo
	to    io.Writer
	enc   runtime.Encoder
}

func (c codec) events(w http.ResponseWriter, r *http.Request) *events {
	info := c.media(r)
	media := info.MediaType
	if media != runtime.ContentTypeJSON {
		media += ";stream=watch"
	}
	w.Header().Set("Content-Type", media)
	return &events{
		codec: c, info: info, to: info.StreamSerializer.NewFrameWriter(w),
		enc: c.factory.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion),
	}
}

func (e *events) write(kind string, o runtime.Object) error {
	ev := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: e.codec.encode(e.info, o)}}
	b, err := runtime.Encode(e.enc, ev)
	utilruntime.Must(err)
	_, err = e.to.Write(b)
	return err
}

// listOf makes a list of the resource.
func listOf(resource string, objects []Object, version uint64) runtime.Object {
	m := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	switch resource {
	case "services":
		return &corev1.ServiceList{ListMeta: m, Items: items[corev1.Service](objects)}
	case "namespaces":
		return &corev1.NamespaceList{ListMeta: m, Items: items[corev1.Namespace](objects)}
	case "pods":
		return &corev1.PodList{ListMeta: m, Items: items[corev1.Pod](objects)}
	case "endpointslices":
		return &discoveryv1.EndpointSliceList{ListMeta: m, Items: items[discoveryv1.EndpointSlice](objects)}
	default:
		panic(fmt.Sprintf("no list of %s", resource))
	}
}

func items[T any](objects []Object) []T {
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		if p, ok := any(o).(*T); ok {
			list = append(list, *p)
		}
	}
	return list
}

// bookmark makes the object of a bookmark.
func bookmark(resource string, version uint64, listEnd bool) Object {
	o := kinds()[resource]
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	if listEnd {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return o
}
