package export

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The published schemas, cut down to what an export may use: their files say
// where they are from.

type ecsSchema struct {
	Version string
	Fields  map[string]struct {
		Type     string
		Array    bool
		Required bool
		Allowed  map[string][]string // value: the event.types expected with it
	}
}

type ocsfSchema struct {
	Version string
	Classes map[string]*ocsfType
	Objects map[string]*ocsfType
}

type ocsfType struct {
	Name       string
	AtLeastOne []string `json:"at_least_one"`
	Attributes map[string]struct {
		Type, Object, Profile string
		Required, Array       bool
		Enum                  []any
	}
}

func load[T any](t testing.TB, file string) *T {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// object decodes one line with its numbers as they are.
func object(line []byte) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.UseNumber()
	var v map[string]any
	return v, d.Decode(&v)
}

// check returns what is wrong with an event, by the schema's own rules.
func (s *ecsSchema) check(event map[string]any) (bad []string) {
	flat := map[string]any{}
	s.flatten("", event, flat)
	for name, f := range s.Fields {
		if _, ok := flat[name]; f.Required && !ok {
			bad = append(bad, "no "+name)
		}
	}
	for name, v := range flat {
		f, ok := s.Fields[name]
		if !ok {
			bad = append(bad, "no such field: "+name)
			continue
		}
		list, isList := v.([]any)
		if isList != f.Array {
			bad = append(bad, name+": array or not")
		}
		if !isList {
			list = []any{v}
		}
		for _, item := range list {
			if !s.fits(f.Type, item) {
				bad = append(bad, fmt.Sprintf("%s: %v is no %s", name, item, f.Type))
			}
			if _, ok := f.Allowed[fmt.Sprint(item)]; f.Allowed != nil && !ok {
				bad = append(bad, fmt.Sprintf("%s is never %v", name, item))
			}
		}
	}
	return append(bad, s.checkTypes(flat)...)
}

// checkTypes wants each event.type to be expected with one of the categories.
func (s *ecsSchema) checkTypes(flat map[string]any) (bad []string) {
	var expected []string
	for _, c := range asList(flat["event.category"]) {
		expected = append(expected, s.Fields["event.category"].Allowed[fmt.Sprint(c)]...)
	}
	for _, typ := range asList(flat["event.type"]) {
		if !slices.Contains(expected, fmt.Sprint(typ)) {
			bad = append(bad, fmt.Sprintf("event.type %v with %v", typ, flat["event.category"]))
		}
	}
	return bad
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

func (s *ecsSchema) flatten(prefix string, v map[string]any, out map[string]any) {
	for k, item := range v {
		name := prefix + k
		inner, nested := item.(map[string]any)
		switch {
		case name == "agentguard": // ours
		case nested && s.Fields[name].Type != "object":
			s.flatten(name+".", inner, out)
		default:
			out[name] = item
		}
	}
}

func (s *ecsSchema) fits(typ string, v any) bool {
	str, isString := v.(string)
	switch typ {
	case "keyword", "wildcard", "match_only_text", "text", "constant_keyword":
		return isString // an empty argument is one
	case "long":
		n, ok := v.(json.Number)
		_, err := n.Int64()
		return ok && err == nil
	case "date":
		_, err := time.Parse(time.RFC3339Nano, str)
		return err == nil
	case "ip":
		_, err := netip.ParseAddr(str)
		return err == nil
	case "object": // labels: keywords only
		for _, item := range v.(map[string]any) {
			if _, ok := item.(string); !ok {
				return false
			}
		}
		return true
	}
	return false
}

func (s *ocsfSchema) check(event map[string]any) []string {
	uid := fmt.Sprint(event["class_uid"])
	class := s.Classes[uid]
	if class == nil {
		return []string{"no class " + uid}
	}
	profiles := []string{}
	if meta, ok := event["metadata"].(map[string]any); ok {
		for _, p := range asList(meta["profiles"]) {
			profiles = append(profiles, fmt.Sprint(p))
		}
		if v := meta["version"]; v != s.Version {
			return []string{fmt.Sprintf("version %v", v)}
		}
	}
	bad := s.checkType(class.Name, class, event, profiles)
	class_, _ := event["class_uid"].(json.Number).Int64()
	activity, _ := event["activity_id"].(json.Number).Int64()
	if got := fmt.Sprint(event["type_uid"]); got != fmt.Sprint(class_*100+activity) {
		bad = append(bad, "type_uid "+got)
	}
	return bad
}

func (s *ocsfSchema) checkType(at string, typ *ocsfType, v map[string]any, profiles []string) (bad []string) {
	for name, a := range typ.Attributes {
		in := a.Profile == "" || slices.Contains(profiles, a.Profile)
		if _, ok := v[name]; !ok && a.Required && in {
			bad = append(bad, at+": no "+name)
		} else if ok && !in {
			bad = append(bad, at+"."+name+" without its profile "+a.Profile)
		}
	}
	if one := typ.AtLeastOne; one != nil && !slices.ContainsFunc(one, func(n string) bool { return v[n] != nil }) {
		bad = append(bad, fmt.Sprintf("%s: none of %v", at, one))
	}
	for name, item := range v {
		a, ok := typ.Attributes[name]
		if !ok {
			bad = append(bad, at+": no such attribute: "+name)
			continue
		}
		list, isList := item.([]any)
		if isList != a.Array {
			bad = append(bad, at+"."+name+": array or not")
		}
		if !isList {
			list = []any{item}
		}
		for _, one := range list {
			bad = append(bad, s.checkValue(at+"."+name, a.Type, a.Object, a.Enum, one, profiles)...)
		}
	}
	return bad
}

// hostnameType is hostname_t of the schema's dictionary.
var hostnameType = regexp.MustCompile(`^(([a-zA-Z0-9_]|[a-zA-Z0-9_][a-zA-Z0-9_\-]*[a-zA-Z0-9_])\.)*([A-Za-z0-9_]|[A-Za-z0-9_][A-Za-z0-9_\-]*[A-Za-z0-9_])\.?$`)

func (s *ocsfSchema) checkValue(at, typ, obj string, enum []any, v any, profiles []string) []string {
	str, isString := v.(string)
	num, isNum := v.(json.Number)
	n, err := num.Int64()
	isNum = isNum && err == nil
	ok := false
	switch typ {
	case "string_t":
		ok = isString && str != ""
	case "hostname_t":
		ok = hostnameType.MatchString(str)
	case "ip_t":
		_, err := netip.ParseAddr(str)
		ok = err == nil
	case "integer_t":
		ok = isNum && n >= math.MinInt32 && n <= math.MaxUint32
	case "long_t":
		ok = isNum
	case "timestamp_t": // ms: between 1990 and 2200
		ok = isNum && n > 631e9 && n < 7258e9
	case "port_t":
		ok = isNum && n >= 0 && n <= 65535
	case "boolean_t":
		_, ok = v.(bool)
	case "object_t":
		inner, isObject := v.(map[string]any)
		if !isObject {
			break
		}
		if obj == "object" { // anything
			return nil
		}
		if s.Objects[obj] == nil {
			return []string{at + ": an object that the test does not know: " + obj}
		}
		return s.checkType(at, s.Objects[obj], inner, profiles)
	}
	if !ok {
		return []string{fmt.Sprintf("%s: %v is no %s", at, v, typ)}
	}
	for _, e := range enum {
		if fmt.Sprint(e) == fmt.Sprint(v) {
			return nil
		}
	}
	if enum != nil {
		return []string{fmt.Sprintf("%s is never %v", at, v)}
	}
	return nil
}
