// Draws one dashboard with Grafana's own components, from what Prometheus answered (window.PICTURE, see draw.py).
import React from 'react';
import { createRoot } from 'react-dom/client';
import { FieldColorModeId, FieldType, ThemeContext, createTheme, dateTime, getDisplayProcessor, toDataFrame } from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, InteractiveTable, PanelChrome, TimeSeries } from '@grafana/ui';
import 'uplot/dist/uPlot.min.css';

const { dashboard, answers, range, choices, note, width } = window.PICTURE;
const theme = createTheme({ colors: { mode: 'light' } });
const GAP = 8;
const COLUMN = (width - 2 * GAP + GAP) / 24;
const ROW = 38;

function named(legend, labels) {
  return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '').trim();
}

// A field of numbers with its unit, its colour by its place among all series of the panel, and its text.
function field(panel, name, values, place) {
  const defaults = panel.fieldConfig.defaults;
  const color = defaults.color ?? { mode: FieldColorModeId.PaletteClassic };
  const made = { name, type: FieldType.number, values, config: { ...defaults, color, displayName: name }, state: { seriesIndex: place } };
  made.display = getDisplayProcessor({ field: made, theme });
  return made;
}

function series(panel) {
  const found = [];
  for (const target of panel.targets) {
    for (const each of answers[panel.id][target.refId] ?? []) {
      found.push({ name: named(target.legendFormat, each.metric), ref: target.refId, labels: each.metric, points: each.values });
    }
  }
  return found.map((each, place) => ({ ...each, place }));
}

const last = (points) => points[points.length - 1][1];

function Graph({ panel, size }) {
  const frames = series(panel).map((each) => {
    const frame = toDataFrame({ fields: [{ name: 'time', type: FieldType.time, values: each.points.map((p) => p[0] * 1000) }] });
    frame.fields.push(field(panel, each.name, each.points.map((p) => p[1]), each.place));
    frame.length = each.points.length;
    return frame;
  });
  const timeRange = { from: dateTime(range[0] * 1000), to: dateTime(range[1] * 1000), raw: { from: '', to: '' } };
  const { legend } = panel.options;
  return <TimeSeries frames={frames} timeRange={timeRange} timeZone="utc" legend={legend} structureRev={1} {...size} />;
}

function Stat({ panel, size }) {
  const [only] = series(panel);
  const shown = field(panel, only.name, [last(only.points)], 0).display(last(only.points));
  return <BigValue theme={theme} value={shown} colorMode="value" graphMode="none" justifyMode="auto" textMode="value" {...size} />;
}

function Bars({ panel, size }) {
  const all = series(panel).sort((a, b) => last(b.points) - last(a.points));
  const most = Math.max(...all.map((each) => last(each.points)));
  const height = Math.min(size.height / all.length, 76);
  return all.map((each) => {
    const one = field(panel, each.name, [last(each.points)], each.place);
    one.config = { ...one.config, max: most, thresholds: { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }] } };
    const value = { ...one.display(last(each.points)), title: each.name };
    return (
      <div key={each.name} style={{ height }}>
        <BarGauge theme={theme} field={one.config} display={one.display} value={value} orientation="horizontal"
          displayMode="basic" namePlacement={panel.options.namePlacement} text={panel.options.text} width={size.width} height={height - 4} itemSpacing={8} showUnfilled />
      </div>
    );
  });
}

function Lines({ panel }) {
  const [{ options }] = panel.transformations;
  const all = series(panel);
  const rows = new Map();
  for (const each of all) {
    const key = each.labels[options.byField];
    const target = panel.targets.find((one) => one.refId === each.ref);
    const unit = panel.fieldConfig.overrides.find((one) => one.matcher.options === target.legendFormat).properties[0].value;
    const shown = field({ fieldConfig: { defaults: { unit } } }, each.name, [], 0).display(last(each.points));
    rows.set(key, { ...rows.get(key), key, [each.ref]: `${shown.prefix ?? ''}${shown.text}${shown.suffix ?? ''}` });
  }
  const columns = [{ id: 'key', header: options.byField }];
  columns.push(...panel.targets.map((target) => ({ id: target.refId, header: target.legendFormat })));
  const data = [...rows.values()].sort((a, b) => a.key.localeCompare(b.key));
  return <InteractiveTable columns={columns} data={data} getRowId={(row) => row.key} />;
}

const KINDS = { timeseries: Graph, stat: Stat, bargauge: Bars, table: Lines };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const size = { width: w * COLUMN - GAP, height: h * ROW - GAP };
  const place = { position: 'absolute', left: x * COLUMN, top: y * ROW, ...size };
  if (panel.type === 'row') {
    return <div style={{ ...place, font: '500 16px Inter, sans-serif', lineHeight: '30px' }}>{panel.title}</div>;
  }
  const Kind = KINDS[panel.type];
  return (
    <div style={place}>
      <PanelChrome title={panel.title} {...size}>
        {(width, height) => <Kind panel={panel} size={{ width, height }} />}
      </PanelChrome>
    </div>
  );
}

function Page() {
  const depth = Math.max(...dashboard.panels.map((panel) => panel.gridPos.y + panel.gridPos.h)) * ROW;
  const text = { font: '14px Inter, sans-serif', color: theme.colors.text.secondary };
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ background: theme.colors.background.canvas, width, padding: GAP, boxSizing: 'border-box' }}>
        <div style={{ display: 'flex', alignItems: 'baseline', gap: 16, padding: '4px 0 4px' }}>
          <span style={{ font: '500 22px Inter, sans-serif', color: theme.colors.text.primary }}>{dashboard.title}</span>
          <span style={text}>{choices}</span>
          {note && <span style={{ ...text, marginLeft: 'auto', color: theme.colors.warning.text, fontWeight: 600 }}>{note}</span>}
        </div>
        <div style={{ ...text, padding: '0 0 8px' }}>{dashboard.description}</div>
        <div style={{ position: 'relative', height: depth }}>
          {dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('page')).render(<Page />);
