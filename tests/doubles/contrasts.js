() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((value, place) => value * a + under[place] * (1 - a));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parse(getComputedStyle(at).backgroundColor));
    return layers.reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const words = walk.currentNode.data.trim();
    const node = walk.currentNode.parentElement;
    if (!words || !node.checkVisibility() || node.closest("noscript, option, .unseen, :disabled")) continue;
    const under = paper(node);
    const ink = over(parse(getComputedStyle(node).color), under);
    const [low, high] = [light(under), light(ink)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), words.slice(0, 40), node.className || node.tagName]);
  }
  return found;
}
